"""Parameters kept in 16 bits are updated by small steps, or run under autocast.

What it checks:
    `torch.optim.SGD` over the parameters of a model that the file casts to fp16, with a learning
    rate below 2⁻¹¹ (4.9e-4); any torch.optim optimizer over a model that is cast to fp16 or bf16
    and called under autocast, where autocast would have cast it for every op.

Why it matters:
    An fp16 weight takes an update only from 2⁻¹² of its size on. With a learning rate of 1e-4 the
    momentum must be 2.4 times as large as the weight itself; smaller updates are rounded away and
    the loss does not move.

Example:
    model = Net().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

Remedy:
    Keep the parameters in fp32 (master weights) and run the forward pass under `torch.autocast`.

References:
    Micikevicius et al., "Mixed Precision Training", arXiv 1710.03740, section 3.1
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.amp import enclosing
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.torch_words import BFLOAT16, FLOAT16, FP16_UNIT_ROUNDOFF
from fp16doctor.diagnose.script_reading.training import (
    cast_calls,
    is_module,
    optimizers,
    trained_format,
    trained_model,
)
from fp16doctor.diagnose.script_reading.tree import argument, spelled
from fp16doctor.diagnose.script_reading.uncasting import uncast
from fp16doctor.diagnose.script_rule import Suspicion, script_rule

_SMALLEST_TAKEN = (
    FP16_UNIT_ROUNDOFF / 2
)  # of the weight's size: half an ulp just below a power of two


@script_rule(code="FD716", name="half-stored-weights")
def half_stored_weights(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per SGD whose small steps fp16 weights cannot take."""
    for call, name in optimizers(script):
        rate = script.number(argument(call, 1, "lr"))
        model = trained_model(script, call)
        if model is None or not is_module(script, model):
            continue
        stored = trained_format(script, call, model)
        small = name == "SGD" and rate is not None and 0 < rate < FP16_UNIT_ROUNDOFF
        if stored == FLOAT16 and small and rate is not None:
            yield _suspicion(script, call, model, rate)
        elif stored in (FLOAT16, BFLOAT16) and _under_autocast(script, model):
            yield _without_masters(script, call, model, str(stored))


def _under_autocast(script: Script, model: ast.expr) -> bool:
    """Whether the model is called in an autocast block of the same function."""
    text, function = spelled(model), script.tree.function(model)
    for call in script.calls:
        if spelled(call.func) == text and script.tree.function(call) is function:
            cast = enclosing(script, call)
            if cast is not None and cast.enabled is True:
                return True
    return False


def _without_masters(script: Script, call: ast.Call, model: ast.expr, stored: str) -> Suspicion:
    bits, most = ("2⁻¹²", "2⁻¹¹") if stored == FLOAT16 else ("2⁻⁹", "2⁻⁸")
    return Suspicion(
        node=call,
        what=f"the parameters of `{spelled(model)}` are kept in {stored}, under autocast",
        reason=(
            "Autocast casts fp32 parameters for each op and leaves them in fp32 for the optimizer. "
            f"Kept in {stored}, a weight does not take an update below {bits} of its size, and "
            f"not always one below {most}."
        ),
        advice="leave the parameters in fp32: autocast casts them",
        edits=uncast(script, cast_calls(script, model, stored)),
    )


def _suspicion(script: Script, call: ast.Call, model: ast.expr, rate: float) -> Suspicion:
    given = argument(call, 1, "lr")
    shown = f"{rate:.3g}" if given is None else script.source(given)
    return Suspicion(
        node=call,
        what=f"SGD with lr {shown} updates the parameters of `{spelled(model)}` in fp16",
        reason=(
            "An fp16 weight takes an update only from 2⁻¹² of its size on: at this rate the "
            f"momentum must be {_SMALLEST_TAKEN / rate:.2g} times as large as the weight or more."
        ),
        advice="keep the parameters in fp32 (master weights) and use torch.autocast",
        edits=uncast(script, cast_calls(script, model, FLOAT16)),
    )
