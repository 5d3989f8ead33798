"""Backward, or the whole training loop, runs inside autocast.

What it checks:
    `backward()` inside a `with autocast` block or a function that autocast decorates; it weighs
    more where the block holds the loop and the optimizer's step.

Why it matters:
    Backward ops run in the format of their forward ops by themselves, and under autocast custom
    backwards are cast a second time. Autocast keeps its 16-bit copies of the weights until the
    outermost block ends: a loop inside it reads the copies of the first step in every later one.

Example:
    with torch.autocast("cuda", dtype=torch.float16):
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()

Remedy:
    Autocast around forward and loss only, inside the loop.

References:
    PyTorch documentation, torch.autocast: "Backward passes under autocast are not recommended"
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.amp import Autocast, enclosing, loss_backwards
from fp16doctor.diagnose.script_reading.patch import Edit, indent_of
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.training import is_optimizer
from fp16doctor.diagnose.script_reading.tree import receiver
from fp16doctor.diagnose.script_rule import Suspicion, script_rule
from fp16doctor.schema.finding import Severity


@script_rule(code="FD717", name="autocast-around-backward", same_as=("stale-autocast-cache",))
def autocast_around_backward(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per backward inside autocast."""
    for call in loss_backwards(script):
        around = enclosing(script, call)
        if around is None or around.enabled is False or _is_method_of_function(call):
            continue
        block = _block(script, call, around)
        loop = _loop_inside(script, call, block)
        yield _suspicion(script, call, block, loop if around.cache is True else None)


def _is_method_of_function(call: ast.Call) -> bool:
    """Whether the receiver is a module or class (``super().backward``), no loss."""
    inner = receiver(call)
    return isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and not inner.args


def _block(script: Script, call: ast.Call, around: Autocast) -> ast.With | None:
    """The with statement that enters ``around``; None where it decorates the function."""
    for above in script.tree.ancestors(call):
        if isinstance(above, ast.With):
            heads = [n for item in above.items for n in ast.walk(item.context_expr)]
            named = [n for n in heads if isinstance(n, ast.Name)]
            if around.call in heads or any(around.call in script.names.values(n) for n in named):
                return above
    return None


def _loop_inside(script: Script, call: ast.Call, block: ast.With | None) -> ast.For | None:
    """The loop inside the block that backward and an optimizer's step both lie in."""
    for loop in script.place(call).loops:
        if isinstance(loop, ast.For) and block is not None and block in script.tree.ancestors(loop):
            steps = [s for s in script.methods("step") if script.place(s).loop is loop]
            if any(s.args or is_optimizer(script, receiver(s)) for s in steps):
                return loop
    return None


def _suspicion(
    script: Script, call: ast.Call, block: ast.With | None, loop: ast.For | None
) -> Suspicion:
    if loop is None:
        return Suspicion(
            node=call,
            what="backward runs inside autocast",
            reason=(
                "Backward ops run in the format of their forward ops by themselves; inside "
                "autocast, the ops that a custom backward calls are cast as well."
            ),
            advice="end the autocast block before backward",
            severity=Severity.NOTE,
            edits=_dedented(script, call, block),
        )
    return Suspicion(
        node=call,
        what="the whole training loop runs inside one autocast block",
        reason=(
            "Autocast keeps 16-bit copies of the weights until its outermost block ends: every "
            "step after the first reads copies from before its update."
        ),
        advice="enter autocast inside the loop, around forward and loss only",
        severity=Severity.ERROR,
        edits=_turned(script, call, block, loop),
    )


def _dedented(script: Script, call: ast.Call, block: ast.With | None) -> list[Edit]:
    """The statements from backward on, moved out of the block where they are its last ones."""
    statement = script.tree.statement(call)
    if block is None or statement not in block.body or statement is block.body[0]:
        return []
    return [_shifted(script, statement.lineno, block.end_lineno or 0, block)]


def _shifted(script: Script, first: int, last: int, block: ast.With) -> Edit:
    """Lines moved left by the indent of the block's body."""
    inner, outer = (indent_of(script.lines, at) for at in (block.body[0].lineno, block.lineno))
    moved = [
        outer + line.removeprefix(inner) if line.startswith(inner) else line
        for line in script.lines[first - 1 : last]
    ]
    return Edit(first, last, tuple(moved))


def _turned(script: Script, call: ast.Call, block: ast.With | None, loop: ast.For) -> list[Edit]:
    """Block and loop change places; forward stays inside the block, the rest leaves it."""
    statement = script.tree.statement(call)
    whole = block is not None and block.body == [loop] and len(block.items) == 1
    if block is None or not whole or statement not in loop.body or statement is loop.body[0]:
        return []
    first, head = loop.body[0].lineno, script.lines[block.lineno - 1 : loop.lineno - 1]
    inner = indent_of(script.lines, loop.lineno)
    return [
        Edit(block.lineno, loop.lineno - 1, ()),
        _shifted(script, loop.lineno, first - 1, block),
        Edit(first, first - 1, tuple(inner + line.lstrip() for line in head)),
        _shifted(script, statement.lineno, loop.end_lineno or 0, block),
    ]
