"""Gradients of several micro-batches are added up and the loss is not divided by their number.

What it checks:
    Backward in every turn of a loop, step and zero_grad under a condition with a remainder
    (`if (i + 1) % n == 0`) or behind an inner loop of n turns that fetch a batch each; and a loss
    that is torch's mean over the micro-batch, divided by nothing.

Why it matters:
    The step uses the sum of n mean gradients, n times that of one batch of the same size: SGD
    steps n times as far, clipping cuts n times as much, and fp16 gradients come n times closer to
    their maximum.

Example:
    for i, (x, y) in enumerate(loader):
        F.cross_entropy(model(x), y).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()

Remedy:
    Divide the loss by the number of micro-batches before backward.

References:
    PyTorch documentation, Automatic Mixed Precision examples, "Gradient accumulation"
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.beside_run import gradients_overflowed
from fp16doctor.diagnose.script_reading.amp import loss_backwards
from fp16doctor.diagnose.script_reading.order import Loop
from fp16doctor.diagnose.script_reading.patch import swap
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.steps import every_nth
from fp16doctor.diagnose.script_reading.torch_words import loss_name
from fp16doctor.diagnose.script_reading.training import is_optimizer
from fp16doctor.diagnose.script_reading.tree import keyword, method, receiver, spelled
from fp16doctor.diagnose.script_rule import Suspicion, script_rule


@script_rule(code="FD723", name="undivided-accumulation", stands=gradients_overflowed)
def undivided_accumulation(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per backward whose mean loss is added up undivided."""
    for backward in loss_backwards(script):
        place = script.place(backward)
        if place.loop is None or every_nth(script, place, place.loop):
            continue
        loss = _loss(backward)
        count = _count(script, backward, place.loop)
        if count is None and loss is not None:
            count = _turns(script, backward, loss, place.loop)
        if loss is not None and count is not None and _is_mean(script, loss):
            yield _suspicion(script, backward, loss, count)


def _loss(backward: ast.Call) -> ast.expr | None:
    """The loss as it is written at backward: in ``scaler.scale(…)``, or before ``.backward``."""
    inner = receiver(backward)
    if method(inner) == "scale" and isinstance(inner, ast.Call):
        return inner.args[0] if len(inner.args) == 1 else None
    return inner


def _is_mean(script: Script, loss: ast.expr) -> bool:
    """Whether the loss is torch's own with its default reduction, in this loop's own words."""
    made = script.single(loss)
    if not isinstance(made, ast.Call):
        return False
    if loss_name(script.name(made)):
        return keyword(made, "reduction") is None
    criterion = [v for v in script.names.known(made.func) if isinstance(v, ast.Call)]
    return (
        len(criterion) == 1
        and bool(loss_name(script.name(criterion[0])))
        and (keyword(criterion[0], "reduction") is None)
    )


def _count(script: Script, backward: ast.Call, loop: Loop) -> ast.expr | None:
    """``n`` of ``if (i + 1) % n == 0``, where step and zero_grad stand under that alone."""
    function = script.tree.function(backward)
    calls = [c for c in script.methods("step", "zero_grad") if script.tree.function(c) is function]
    steps = [c for c in calls if method(c) == "step" and _steps_optimizer(script, c)]
    clears = [c for c in calls if method(c) == "zero_grad" and loop in script.place(c).loops]
    conditions = {every_nth(script, script.place(c), loop) for c in [*steps, *clears]}
    if not steps or not clears or len(conditions) != 1 or "" in conditions:
        return None
    arms = [a for a in script.place(steps[0]).arms if a.condition in conditions and a.holds]
    test = arms[0].test if arms else None
    test = None if test is None else script.single(test)
    found = list(ast.walk(test)) if test is not None else []
    moduli = [n.right for n in found if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod)]
    return moduli[0] if len(moduli) == 1 else None


def _turns(script: Script, backward: ast.Call, loss: ast.expr, loop: Loop) -> ast.expr | None:
    """``n`` of an inner ``for _ in range(n)`` that fetches a batch in each turn, step behind it."""
    turns = loop.iter if isinstance(loop, ast.For) else None
    if not isinstance(turns, ast.Call) or spelled(turns.func) != "range" or len(turns.args) != 1:
        return None
    outer, function = script.place(backward).loops[1:], script.tree.function(backward)
    calls = [c for c in script.methods("step", "zero_grad") if script.tree.function(c) is function]
    calls = [c for c in calls if method(c) == "zero_grad" or _steps_optimizer(script, c)]
    inside = any(loop in script.place(c).loops for c in calls)
    behind = {method(c) for c in calls if outer and script.place(c).loops == outer}
    complete = not inside and behind == {"step", "zero_grad"}
    return turns.args[0] if complete and _fetches(script, loss, loop) else None


def _fetches(script: Script, loss: ast.expr, loop: Loop) -> bool:
    """Whether the loss is computed from what a call gave to several names, or ``next``.

    The call must not depend on the turn: then the turns are steps of one sequence, and a sum.
    """
    read = {n.id for n in script.closure(loss) if isinstance(n, ast.Name)}
    bound = {n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and _is_stored(n)}
    for made in ast.walk(loop):
        if not isinstance(made, ast.Assign) or not isinstance(made.value, ast.Call):
            continue
        names = {n.id for n in ast.walk(made.targets[0]) if isinstance(n, ast.Name)}
        several = isinstance(made.targets[0], ast.Tuple) or spelled(made.value.func) == "next"
        given = {n.id for a in made.value.args for n in ast.walk(a) if isinstance(n, ast.Name)}
        if several and names & read and not given & bound:
            return True
    return False


def _is_stored(name: ast.Name) -> bool:
    return not isinstance(name.ctx, ast.Load)


def _steps_optimizer(script: Script, call: ast.Call) -> bool:
    return bool(call.args) or is_optimizer(script, receiver(call))


def _suspicion(script: Script, backward: ast.Call, loss: ast.expr, count: ast.expr) -> Suspicion:
    n = script.source(count)
    text = script.source(loss)
    divided = f"{text} / {n}" if method(receiver(backward)) == "scale" else f"({text} / {n})"
    return Suspicion(
        node=backward,
        what=f"mean losses of `{n}` micro-batches are added up undivided",
        reason=f"Their gradient is `{n}` times that of one batch of the same size.",
        advice=f"divide the loss by `{n}` before backward",
        edits=swap(script.lines, (loss, divided)),
    )
