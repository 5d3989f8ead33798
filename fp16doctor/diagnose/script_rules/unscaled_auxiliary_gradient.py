"""A custom backward returns a constant gradient, and the loss is scaled.

What it checks:
    In a file with a GradScaler: the backward of a `torch.autograd.Function` returns
    `torch.ones_like(…)` or `torch.ones(…)` for one of its inputs.

Why it matters:
    The gradients that come from the loss carry the loss scale, the one made here does not. After
    the division by the scale it is too small by that factor: an auxiliary loss has no effect.

Example:
    class AttachLoss(torch.autograd.Function):
        @staticmethod
        def backward(ctx, g):
            return g, torch.ones_like(ctx.saved_tensors[0])

Remedy:
    Add the auxiliary loss to the loss before `scaler.scale`, or multiply the gradient by the loss
    scale.

References:
    https://github.com/NVIDIA-NeMo/Automodel/pull/1412
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.amp import scaled_backwards
from fp16doctor.diagnose.script_reading.names import method_named
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.tree import spelled
from fp16doctor.diagnose.script_rule import Suspicion, script_rule
from fp16doctor.schema.finding import Severity

_ONES = ("torch.ones_like", "torch.ones")


@script_rule(code="FD709", name="unscaled-auxiliary-gradient")
def unscaled_auxiliary_gradient(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per gradient of ones that a custom backward returns."""
    if not scaled_backwards(script):
        return
    for node in script.tree.nodes:
        if isinstance(node, ast.ClassDef) and _is_function(script, node):
            backward = method_named(node, "backward")
            for part in script.tree.within(backward) if backward is not None else ():
                if isinstance(part, ast.Return) and part.value is not None:
                    yield from _returned(script, part.value)


def _is_function(script: Script, node: ast.ClassDef) -> bool:
    names = {script.names.dotted(base) for base in node.bases}
    return bool(names & {"torch.autograd.Function", "torch.autograd.function.Function"})


def _returned(script: Script, value: ast.expr) -> Iterator[Suspicion]:
    for one in value.elts if isinstance(value, ast.Tuple) else [value]:
        made = script.single(one)
        if script.name(made) in _ONES:
            yield Suspicion(
                node=one,
                what=f"backward returns `{spelled(made)}`, which does not carry the loss scale",
                reason=(
                    "The gradients from the loss are larger by the scale of the GradScaler, which "
                    "divides both: what is returned here ends too small by that factor."
                ),
                advice="add the auxiliary loss to the loss before it is scaled, or multiply this"
                " gradient by the scale",
                severity=Severity.ERROR,
            )
