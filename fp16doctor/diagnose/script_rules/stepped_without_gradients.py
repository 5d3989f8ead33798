"""`scaler.step` runs where backward of that optimizer may not have run.

What it checks:
    In one turn of a loop: `optimizer.zero_grad()`, then every backward under a condition, then
    `scaler.step(optimizer)` without that condition.

Why it matters:
    Where the condition does not hold, the optimizer has no gradient, the scaler has recorded no
    check for inf, and `scaler.step` raises AssertionError: "No inf checks were recorded for this
    optimizer".

Example:
    opt_d.zero_grad()
    if step >= 1000:
        scaler.scale(d_loss()).backward()
    scaler.step(opt_d)

Remedy:
    Step under the condition of the backward.

References:
    PyTorch documentation, torch.amp.GradScaler.step
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.amp import loss_backwards, scaled_backwards, scaler_calls
from fp16doctor.diagnose.script_reading.order import Place, always_before
from fp16doctor.diagnose.script_reading.patch import Edit, insert_after, remove_call
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.steps import between
from fp16doctor.diagnose.script_reading.tree import keyword, receiver, spelled
from fp16doctor.diagnose.script_rule import Suspicion, script_rule
from fp16doctor.schema.finding import Severity


@script_rule(code="FD708", name="stepped-without-gradients")
def stepped_without_gradients(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per step that can meet an optimizer without gradients."""
    scaled = scaled_backwards(script)
    for step in scaler_calls(script, "step") if scaled else ():
        cleared = _cleared(script, step)
        if cleared is None:
            continue
        found = [b for b in loss_backwards(script) if between(script, cleared, b, step)]
        if found and all(b in scaled for b in found) and _optional(script, found, step):
            yield _suspicion(script, step, found[-1])


def _cleared(script: Script, step: ast.Call) -> ast.Call | None:
    """The call that sets the gradients of the step's optimizer to None before it."""
    if not step.args:
        return None
    optimizer, place = spelled(step.args[0]), script.place(step)
    calls = [c for c in script.methods("zero_grad") if spelled(receiver(c)) == optimizer]
    before = [c for c in calls if always_before(script.place(c), place)]
    if not before or script.place(before[-1]).loop is not place.loop:
        return None
    kept = script.truth(keyword(before[-1], "set_to_none"), True) is not True
    return None if kept or before[-1].args else before[-1]


def _optional(script: Script, backwards: list[ast.Call], step: ast.Call) -> bool:
    """Whether a way leads to the step past every backward."""
    sides = script.place(step).sides()
    extra = [script.place(b).sides() - sides for b in backwards]
    if not all(len(e) == 1 for e in extra) or not all(_plain(script, b, step) for b in backwards):
        return False
    own = {next(iter(e)) for e in extra}
    return not any((condition, not holds) in own for condition, holds in own)


def _plain(script: Script, backward: ast.Call, step: ast.Call) -> bool:
    """The backward stands in the step's own loop, and its condition is no jump and no try."""
    there: Place = script.place(backward)
    arms = [a for a in there.arms if (a.condition, a.holds) not in script.place(step).sides()]
    same_loop = there.loops == script.place(step).loops
    return same_loop and all(a.test is not None and not a.jumps for a in arms)


def _suspicion(script: Script, step: ast.Call, backward: ast.Call) -> Suspicion:
    condition = script.place(backward).arms[-1].condition
    return Suspicion(
        node=step,
        what=f"`{spelled(step)}` runs also where `{condition}` kept backward from running",
        reason=(
            "The optimizer then has no gradients and the scaler raises AssertionError: "
            '"No inf checks were recorded for this optimizer".'
        ),
        advice="step under the condition of the backward",
        severity=Severity.ERROR,
        edits=_edits(script, step, backward),
    )


def _edits(script: Script, step: ast.Call, backward: ast.Call) -> list[Edit]:
    statement = script.tree.statement(step)
    moved = insert_after(script.lines, script.tree.statement(backward), spelled(step))
    return [moved, remove_call(script.lines, statement, step)]
