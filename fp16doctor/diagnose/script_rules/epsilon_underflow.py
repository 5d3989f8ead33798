"""An optimizer with an eps that is zero in fp16 steps parameters that were cast to fp16.

What it checks:
    Adam, AdamW, NAdam, RAdam or RMSprop of torch.optim over the parameters of a model that the file
    casts to fp16, with an eps of 2⁻²⁵ or less (the default is 1e-8) and not `fused=True`.

Why it matters:
    The state has the format of the parameters. In fp16 the eps is 0, and so is the square of a
    gradient of 5.5e-3 or less in Adam's first step: the update is a division by zero.

Example:
    model = Net().half()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

Remedy:
    Keep the parameters in fp32 and use `torch.autocast`. An eps of 1e-4 avoids the division by
    zero and changes the step size.

References:
    PyTorch documentation, torch.optim.Adam; https://github.com/pytorch/pytorch/issues/1767
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.beside_run import stored_in_fp16
from fp16doctor.diagnose.script_reading.patch import Edit, swap, with_argument
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.torch_words import (
    EPS_OPTIMIZERS,
    FLOAT16,
    FP16_UNDERFLOW,
)
from fp16doctor.diagnose.script_reading.training import (
    is_module,
    optimizers,
    trained_format,
    trained_model,
)
from fp16doctor.diagnose.script_reading.tree import keyword, spelled
from fp16doctor.diagnose.script_rule import Suspicion, script_rule
from fp16doctor.schema.finding import Severity


@script_rule(
    code="FD715",
    name="epsilon-underflow",
    stands=stored_in_fp16,
    same_as=("optimizer-state-underflow",),
)
def epsilon_underflow(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per optimizer whose eps is zero in its parameters' format."""
    for call, name in optimizers(script):
        model = trained_model(script, call) if name in EPS_OPTIMIZERS else None
        if model is None or _fused_or_unclear(script, call):
            continue
        eps = keyword(call, "eps")
        size = EPS_OPTIMIZERS[name] if eps is None else script.number(eps)
        zero = size is not None and abs(size) <= FP16_UNDERFLOW
        if zero and is_module(script, model) and trained_format(script, call, model) == FLOAT16:
            yield _suspicion(script, call, name, spelled(model), f"{size:g}".replace("e-0", "e-"))


def _fused_or_unclear(script: Script, call: ast.Call) -> bool:
    starred = any(k.arg is None for k in call.keywords) or len(call.args) > 2
    return starred or script.truth(keyword(call, "fused"), False) is not False


def _suspicion(script: Script, call: ast.Call, name: str, model: str, eps: str) -> Suspicion:
    return Suspicion(
        node=call,
        what=f"{name} steps the fp16 parameters of `{model}` with eps {eps}, which is 0 in fp16",
        reason=(
            "State and eps have the format of the parameters, where 2⁻²⁵ and less is zero: a "
            "squared gradient that underflows is divided by zero."
        ),
        advice="keep the parameters in fp32 and use torch.autocast, or at least eps=1e-4",
        severity=Severity.ERROR,
        edits=_edits(script, call),
    )


def _edits(script: Script, call: ast.Call) -> list[Edit]:
    eps = keyword(call, "eps")
    if eps is None:
        return [with_argument(script.lines, call, "eps=1e-4")]
    return swap(script.lines, (eps, "1e-4"))
