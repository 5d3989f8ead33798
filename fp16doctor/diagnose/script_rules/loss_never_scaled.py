"""`scaler.step` divides gradients of a loss that was never multiplied by the scale.

What it checks:
    A GradScaler that the file makes and steps with, that is handed to nothing else, and whose
    `scale` is called nowhere.

Why it matters:
    The scaler has no scale before the first `scale`: `step` raises AssertionError "Attempted
    step but _scale is None".

Example:
    loss.backward()
    scaler.step(optimizer)
    scaler.update()

Remedy:
    `scaler.scale(loss).backward()`.

References:
    PyTorch documentation, torch.amp.GradScaler.scale
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.amp import loss_backwards
from fp16doctor.diagnose.script_reading.patch import Edit, swap
from fp16doctor.diagnose.script_reading.scalers import own_scalers, stays_here
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.steps import last_before
from fp16doctor.diagnose.script_reading.tree import receiver, spelled
from fp16doctor.diagnose.script_rule import Suspicion, script_rule
from fp16doctor.schema.finding import Severity


@script_rule(code="FD731", name="loss-never-scaled")
def loss_never_scaled(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion at the first step of a scaler that scales nothing."""
    for scaler in own_scalers(script):
        steps = [c for c in script.methods("step") if spelled(receiver(c)) == scaler and c.args]
        scales = any(spelled(receiver(c)) == scaler for c in script.methods("scale"))
        if steps and not scales and stays_here(script, scaler):
            yield Suspicion(
                node=steps[0],
                what=f"`{scaler}.step` is called and `{scaler}.scale` is not",
                reason=(
                    "The scaler has no scale yet and raises AssertionError; divided by a scale, "
                    "the gradients would be too small by it."
                ),
                advice=f"call backward on `{scaler}.scale(loss)`",
                severity=Severity.ERROR,
                edits=_edits(script, scaler, steps[0]),
            )


def _edits(script: Script, scaler: str, step: ast.Call) -> list[Edit]:
    backward = last_before(script, loss_backwards(script), step)
    if backward is None:
        return []
    loss = receiver(backward)
    return swap(script.lines, (loss, f"{scaler}.scale({script.source(loss)})"))
