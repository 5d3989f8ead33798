"""Gradients of several micro-batches are added up and the loss is not divided by their number.

What it checks:
    Backward in every turn of a loop, step and zero_grad under a condition with a remainder
    (`if (i + 1) % n == 0`), and a loss that is torch's mean over the micro-batch, divided by
    nothing.

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

from fp16doctor.diagnose.script_reading.amp import loss_backwards
from fp16doctor.diagnose.script_reading.order import Loop
from fp16doctor.diagnose.script_reading.patch import swap
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.steps import every_nth
from fp16doctor.diagnose.script_reading.torch_words import loss_name
from fp16doctor.diagnose.script_reading.training import is_optimizer
from fp16doctor.diagnose.script_reading.tree import keyword, method, receiver
from fp16doctor.diagnose.script_rule import Suspicion, script_rule


@script_rule(code="FD723", name="undivided-accumulation")
def undivided_accumulation(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per backward whose mean loss is added up undivided."""
    for backward in loss_backwards(script):
        place = script.place(backward)
        if place.loop is None or every_nth(place, place.loop):
            continue
        loss = _loss(script, backward)
        count = _count(script, backward, place.loop)
        if loss is not None and count is not None and _is_mean(script, loss):
            yield _suspicion(script, backward, loss, count)


def _loss(script: Script, backward: ast.Call) -> ast.expr | None:
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
    conditions = {every_nth(script.place(c), loop) for c in [*steps, *clears]}
    if not steps or not clears or len(conditions) != 1 or "" in conditions:
        return None
    arms = [a for a in script.place(steps[0]).arms if a.condition in conditions and a.holds]
    test = arms[0].test if arms else None
    found = list(ast.walk(test)) if test is not None else []
    moduli = [n.right for n in found if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod)]
    return moduli[0] if len(moduli) == 1 else None


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
