"""The learning-rate schedule moves on although the scaler may have skipped the step.

What it checks:
    `scheduler.step()` in the same turn of the loop as `scaler.step(optimizer)`, with no look at
    the scale in the function. A note: a few skipped steps at the start move a schedule by as many
    iterations.

Why it matters:
    `scaler.step` leaves the optimizer out where a gradient is inf or NaN. The schedule then runs
    ahead of the optimizer; a warm-up can be over before the first update.

Example:
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()

Remedy:
    Step the schedule only where the scale did not go down:
    `if scaler.get_scale() >= scale_before: scheduler.step()`.

References:
    https://github.com/pytorch/pytorch/issues/44511; https://github.com/pytorch/pytorch/issues/67590
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.beside_run import skipped_in_training
from fp16doctor.diagnose.script_reading.amp import scaler_calls
from fp16doctor.diagnose.script_reading.order import Place, always_before, follows
from fp16doctor.diagnose.script_reading.patch import (
    Edit,
    insert_before,
    is_alone,
    replace_statement,
)
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.training import is_schedule
from fp16doctor.diagnose.script_reading.tree import receiver, spelled
from fp16doctor.diagnose.script_rule import Suspicion, script_rule
from fp16doctor.schema.finding import Severity


@script_rule(code="FD707", name="schedule-past-skipped-steps", stands=skipped_in_training)
def schedule_past_skipped_steps(script: Script) -> Iterator[Suspicion]:
    """Yield one note per step of a schedule that no look at the scale guards."""
    steps = [s for s in scaler_calls(script, "step") if s.args]
    for call in script.methods("step") if steps and "get_scale" not in script.text else ():
        if not is_schedule(script, receiver(call)):
            continue
        place = script.place(call)
        at_top = place.loop is None and isinstance(place.function, ast.Module)
        same_turn = [s for s in steps if script.place(s).loops == place.loops and not at_top]
        near = [s for s in same_turn if _always_beside(script.place(s), place)]
        if near:
            yield _suspicion(script, call, near[-1])


def _always_beside(step: Place, schedule: Place) -> bool:
    """Whether the scaler has stepped, or will, wherever the schedule does."""
    return always_before(step, schedule) or (
        follows(schedule, step) and step.sides() <= schedule.sides()
    )


def _suspicion(script: Script, call: ast.Call, step: ast.Call) -> Suspicion:
    scaler = spelled(receiver(step))
    return Suspicion(
        node=call,
        what=f"`{spelled(call)}` also runs where `{scaler}.step` skipped the update",
        reason=(
            "A step with a non-finite gradient is left out by the scaler, and the schedule is then "
            "one iteration ahead of the optimizer."
        ),
        advice="step the schedule only where the scale did not go down",
        severity=Severity.NOTE,
        edits=_edits(script, call, step, scaler),
    )


def _edits(script: Script, call: ast.Call, step: ast.Call, scaler: str) -> list[Edit]:
    before, after = script.tree.statement(step), script.tree.statement(call)
    if not is_alone(after, call) or after.lineno < before.lineno:
        return []
    return [
        insert_before(script.lines, before, f"scale_before = {scaler}.get_scale()"),
        replace_statement(
            script.lines,
            after,
            f"if {scaler}.get_scale() >= scale_before:",
            f"    {spelled(call)}",
        ),
    ]
