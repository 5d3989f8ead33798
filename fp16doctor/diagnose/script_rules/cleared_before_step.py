"""Gradients are cleared between backward and the step that should use them.

What it checks:
    In one turn of a loop: backward, then `optimizer.zero_grad()`, then the step of the same
    optimizer, with no backward and no other source of gradients between the last two.

Why it matters:
    The optimizer never meets a gradient: nothing is trained. Weight decay and momentum may still
    move the weights. Where `zero_grad` sets the gradients to None, `scaler.step` raises
    AssertionError: "No inf checks were recorded for this optimizer".

Example:
    scaler.scale(loss).backward()
    optimizer.zero_grad()
    scaler.step(optimizer)

Remedy:
    Clear the gradients before backward, or behind the step.

References:
    PyTorch documentation, torch.optim.Optimizer.zero_grad
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.beside_run import trained
from fp16doctor.diagnose.script_reading.amp import loss_backwards
from fp16doctor.diagnose.script_reading.order import always_before
from fp16doctor.diagnose.script_reading.patch import Edit, insert_after, remove_call
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.steps import between
from fp16doctor.diagnose.script_reading.training import is_optimizer
from fp16doctor.diagnose.script_reading.tree import receiver, spelled
from fp16doctor.diagnose.script_rule import Suspicion, script_rule
from fp16doctor.schema.finding import Severity

# What may be called between the two and brings no gradient.
_HARMLESS = frozenset(
    ("unscale_", "clip_grad_norm_", "clip_grad_value_", "parameters", "item", "print", "get_scale")
)


@script_rule(code="FD733", name="cleared-before-step", stands=trained, proven=True)
def cleared_before_step(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion for each call that takes a step's gradients away."""
    told: set[ast.Call] = set()
    for step in script.methods("step"):
        optimizer = step.args[0] if step.args else receiver(step)
        cleared = _cleared(script, spelled(optimizer), step)
        if cleared is None or cleared in told or not is_optimizer(script, optimizer):
            continue
        if _backward_before(script, cleared) and not _renewed(script, cleared, step):
            told.add(cleared)
            yield _suspicion(script, cleared, step)


def _cleared(script: Script, optimizer: str, step: ast.Call) -> ast.Call | None:
    """The last call that clears the optimizer's gradients in the turn of its step."""
    at = script.place(step)
    calls = [c for c in script.methods("zero_grad") if spelled(receiver(c)) == optimizer]
    before = [c for c in calls if always_before(script.place(c), at)]
    return before[-1] if before and script.place(before[-1]).loops == at.loops else None


def _backward_before(script: Script, cleared: ast.Call) -> bool:
    at = script.place(cleared)
    return bool(at.loops) and any(
        always_before(script.place(b), at) and script.place(b).loops[-len(at.loops) :] == at.loops
        for b in loss_backwards(script)
    )


def _renewed(script: Script, cleared: ast.Call, step: ast.Call) -> bool:
    """Whether something between the two may compute gradients or set them."""
    for node in ast.walk(script.tree.function(cleared)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else spelled(node.func)
            found = name not in _HARMLESS
        elif isinstance(node, ast.Attribute):
            found = node.attr == "grad" and isinstance(node.ctx, ast.Store)
        else:
            continue
        if found and node not in (cleared, step) and between(script, cleared, node, step):
            return True
    return False


def _suspicion(script: Script, cleared: ast.Call, step: ast.Call) -> Suspicion:
    return Suspicion(
        node=cleared,
        what=f"`{spelled(cleared)}` clears the gradients between backward and `{spelled(step)}`",
        reason="The step meets no gradient of the loss: the loss trains nothing.",
        advice=f"call `{spelled(cleared)}` before backward or behind `{spelled(step)}`",
        severity=Severity.ERROR,
        edits=_edits(script, cleared, step),
    )


def _edits(script: Script, cleared: ast.Call, step: ast.Call) -> list[Edit]:
    moved = insert_after(script.lines, script.tree.statement(step), spelled(cleared))
    return [moved, remove_call(script.lines, script.tree.statement(cleared), cleared)]
