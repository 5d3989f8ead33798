"""`scaler.step` is called and `scaler.update` never.

What it checks:
    A GradScaler that the file makes, steps with and never updates, and that is handed to nothing
    that could update it.

Why it matters:
    `update` changes the scale after a step with non-finite gradients, and opens the next step:
    without it the second `scaler.step` raises "step() has already been called since the last
    update()".

Example:
    scaler.scale(loss).backward()
    scaler.step(optimizer)        # no scaler.update()

Remedy:
    Call `scaler.update()` once after the last `scaler.step` of an iteration.

References:
    PyTorch documentation, torch.amp.GradScaler.update
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.beside_run import never_updated
from fp16doctor.diagnose.script_reading.patch import insert_after
from fp16doctor.diagnose.script_reading.scalers import own_scalers, stays_here
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.tree import receiver, spelled
from fp16doctor.diagnose.script_rule import Suspicion, script_rule
from fp16doctor.schema.finding import Severity


@script_rule(code="FD702", name="scaler-without-update", stands=never_updated)
def scaler_without_update(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion at the last step of a scaler that nothing updates."""
    for scaler in own_scalers(script):
        steps = [c for c in script.methods("step") if spelled(receiver(c)) == scaler and c.args]
        updated = any(spelled(receiver(c)) == scaler for c in script.methods("update"))
        if steps and not updated and stays_here(script, scaler):
            yield _suspicion(script, scaler, steps[-1])


def _suspicion(script: Script, scaler: str, step: ast.Call) -> Suspicion:
    return Suspicion(
        node=step,
        what=f"`{scaler}.step` is called and `{scaler}.update` is not",
        reason=(
            "The second step of the same optimizer raises RuntimeError, and the loss scale never "
            "follows the gradients."
        ),
        advice=f"call `{scaler}.update()` once after the last step of an iteration",
        severity=Severity.ERROR,
        edits=[insert_after(script.lines, script.tree.statement(step), f"{scaler}.update()")],
    )
