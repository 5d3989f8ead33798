"""`scaler.update` runs in each micro-batch, while the optimizer steps every n-th.

What it checks:
    In one loop: backward of a scaled loss and `scaler.update()` in every turn, `scaler.step` only
    under a condition with a remainder (`if (i + 1) % n == 0`).

Why it matters:
    Between two steps the scaler has recorded no check for inf, so `update` raises; and where it
    changed the scale, gradients of different scales would be added up.

Example:
    for i, (x, y) in enumerate(loader):
        scaler.scale(criterion(model(x), y) / n).backward()
        if (i + 1) % n == 0:
            scaler.step(optimizer)
        scaler.update()

Remedy:
    Call `scaler.update()` behind `scaler.step`, under the same condition.

References:
    PyTorch documentation, Automatic Mixed Precision examples, "Gradient accumulation"
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.amp import scaled_backwards, scaler_calls
from fp16doctor.diagnose.script_reading.patch import insert_after, remove_call
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.steps import every_nth
from fp16doctor.diagnose.script_reading.tree import receiver, spelled
from fp16doctor.diagnose.script_rule import Suspicion, script_rule
from fp16doctor.schema.finding import Severity


@script_rule(code="FD703", name="updated-per-microbatch")
def updated_per_microbatch(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per update that runs more often than the step."""
    backwards = scaled_backwards(script)
    for update in scaler_calls(script, "update") if backwards else ():
        place = script.place(update)
        if place.loop is None or every_nth(script, place, place.loop):
            continue
        step = _rare_step(script, update)
        if step and any(script.place(b).loop is place.loop for b in backwards):
            yield _suspicion(script, update, step)


def _rare_step(script: Script, update: ast.Call) -> ast.Call | None:
    """The one step of the same scaler, where it stands under a remainder in the update's loop."""
    scaler, loop = spelled(receiver(update)), script.place(update).loop
    steps = [s for s in scaler_calls(script, "step") if spelled(receiver(s)) == scaler]
    steps = [s for s in steps if script.tree.function(s) is script.tree.function(update)]
    rare = all(every_nth(script, script.place(s), loop) for s in steps)
    return steps[-1] if steps and rare else None


def _suspicion(script: Script, update: ast.Call, step: ast.Call) -> Suspicion:
    scaler = spelled(receiver(update))
    statement = script.tree.statement(update)
    condition = every_nth(script, script.place(step), script.place(update).loop)
    edits = [
        insert_after(script.lines, script.tree.statement(step), f"{scaler}.update()"),
        remove_call(script.lines, statement, update),
    ]
    return Suspicion(
        node=update,
        what=f"`{scaler}.update()` runs in each micro-batch, `{scaler}.step` only if `{condition}`",
        reason=(
            "In a turn without a step the scaler has no check for inf to go by and `update` raises "
            "AssertionError."
        ),
        advice=f"call `{scaler}.update()` after `{scaler}.step`, under the same condition",
        severity=Severity.ERROR,
        edits=edits,
    )
