"""BCELoss runs under autocast.

What it checks:
    `nn.BCELoss` or `F.binary_cross_entropy` called in an autocast block: of CUDA; or of the CPU,
    where its input comes from a sigmoid in the same 16-bit format.

Why it matters:
    CUDA autocast refuses it: RuntimeError "unsafe to autocast". On the CPU it runs in fp32 on a
    probability rounded to 16 bits: 1 − 2⁻¹² is 1 in fp16, and the gradient there is 1e12, above
    the fp16 maximum 65504.

Example:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.BCELoss()(torch.sigmoid(logits), target)

Remedy:
    `nn.BCEWithLogitsLoss` on the logits.

References:
    PyTorch documentation, Autocast Op Reference, "Prefer binary_cross_entropy_with_logits"
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.amp import Autocast, in_force
from fp16doctor.diagnose.script_reading.flows import comes_from
from fp16doctor.diagnose.script_reading.patch import Edit, swap
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.torch_words import BFLOAT16, FLOAT16
from fp16doctor.diagnose.script_reading.tree import receiver
from fp16doctor.diagnose.script_rule import Suspicion, script_rule
from fp16doctor.schema.finding import Severity

_SIGMOIDS = {"torch.sigmoid", "torch.nn.functional.sigmoid", "torch.special.expit"}


@script_rule(code="FD720", name="bce-under-autocast")
def bce_under_autocast(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per BCE of probabilities under autocast."""
    named = "BCELoss" in script.text or "binary_cross_entropy" in script.text
    for call in script.calls if named and "autocast" in script.text else ():
        if not _is_bce(script, call) or not call.args:
            continue
        cast = in_force(script, call)
        if cast is None or cast.enabled is False:
            continue
        refused = cast.device == "cuda" and cast.enabled is True
        if refused or (_rounded_on_cpu(cast) and _sigmoids(script, call)):
            yield _suspicion(script, call, cast)


def _rounded_on_cpu(cast: Autocast) -> bool:
    return cast.device == "cpu" and cast.dtype in (FLOAT16, BFLOAT16)


def _is_bce(script: Script, call: ast.Call) -> bool:
    if script.name(call) == "torch.nn.functional.binary_cross_entropy":
        return True
    made = script.names.known(call.func)
    return bool(made) and all(script.name(v) == "torch.nn.BCELoss" for v in made)


def _is_sigmoid(script: Script, call: ast.Call) -> bool:
    if script.name(call) in _SIGMOIDS:
        return True
    if isinstance(call.func, ast.Attribute) and call.func.attr == "sigmoid" and not call.args:
        return True
    made = script.names.known(call.func)
    return bool(made) and all(script.name(v) == "torch.nn.Sigmoid" for v in made)


def _suspicion(script: Script, call: ast.Call, cast: Autocast) -> Suspicion:
    refused = cast.device == "cuda"
    reason = (
        "CUDA autocast raises RuntimeError: it holds binary_cross_entropy for unsafe to autocast."
        if refused
        else f"The probability is rounded to {cast.dtype} first and near 0 or 1 becomes 0 or 1; "
        "the gradient there is 1e12, above the fp16 maximum 65504."
    )
    return Suspicion(
        node=call,
        what="binary cross-entropy of probabilities runs under autocast",
        reason=reason,
        advice="take the logits: BCEWithLogitsLoss or F.binary_cross_entropy_with_logits",
        severity=Severity.ERROR if refused else Severity.WARNING,
        edits=_edits(script, call),
    )


def _sigmoids(script: Script, call: ast.Call) -> list[ast.Call]:
    return comes_from(script, call.args[0], _is_sigmoid)


def _edits(script: Script, call: ast.Call) -> list[Edit]:
    """The sigmoid goes where it is made, and the loss takes logits."""
    made, loss = _sigmoids(script, call), call.func
    if not script.name(call):
        built = [v for v in script.names.known(call.func) if isinstance(v, ast.Call)]
        loss = built[0].func
    name = script.source(loss)
    renamed = {
        "BCELoss": name[: -len("BCELoss")] + "BCEWithLogitsLoss",
        "binary_cross_entropy": name + "_with_logits",
    }.get(name.rpartition(".")[2])
    if len(made) != 1 or renamed is None or not isinstance(loss, ast.Attribute):
        return []
    logits = made[0].args[0] if made[0].args else receiver(made[0])
    return swap(script.lines, (loss, renamed), (made[0], script.source(logits)))
