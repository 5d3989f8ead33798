"""What happens between two places of a training step: divisions of gradients, calls of helpers.

Must not know any rule.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.order import Loop, Place, follows
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.training import gradient_scalings, is_optimizer
from fp16doctor.diagnose.script_reading.tree import method, receiver, spelled


def between(script: Script, first: ast.AST, node: ast.AST, last: ast.AST) -> bool:
    """Whether ``node`` can run after ``first`` and before ``last`` in one turn of the loop."""
    at = script.place(node)
    return follows(script.place(first), at) and follows(at, script.place(last))


def rescaled_between(script: Script, first: ast.AST, last: ast.AST) -> bool:
    """Whether gradients may be unscaled, or multiplied by hand, between the two."""
    changed = [*script.methods("unscale_", "mul_", "div_"), *gradient_scalings(script)]
    return any(between(script, first, node, last) for node in changed)


def calls_between(
    script: Script, first: ast.AST, last: ast.AST, reaching: ast.expr
) -> list[ast.Call]:
    """Calls that may use the object ``reaching`` out of sight: it, or its owner, is handed over."""
    text, root = spelled(reaching), spelled(reaching).split(".")[0]
    found = []
    for call in script.calls:
        if call is last or not between(script, first, call, last):
            continue
        handed = [*call.args, *[k.value for k in call.keywords]]
        if any(spelled(a) in (text, root) for a in handed) or _own_helper(script, call, root):
            found.append(call)
    return found


def _own_helper(script: Script, call: ast.Call, root: str) -> bool:
    """A method of the scaler's owner, or a function of the file that says ``unscale_``."""
    if isinstance(call.func, ast.Attribute) and spelled(call.func.value) == root == "self":
        return True
    if isinstance(call.func, ast.Name):
        bound = script.names.bound(call.func)
        return any(
            isinstance(b, (ast.FunctionDef, ast.AsyncFunctionDef)) and "unscale_" in ast.unparse(b)
            for b in bound
        )
    return False


def plain_steps(script: Script) -> Iterator[ast.Call]:
    """Calls ``optimizer.step()`` of optimizers themselves."""
    for call in script.methods("step"):
        if not call.args and is_optimizer(script, receiver(call)):
            yield call


def last_before(script: Script, calls: list[ast.Call], node: ast.AST) -> ast.Call | None:
    """The last of ``calls`` that runs before ``node`` in one turn of the loop."""
    at = script.place(node)
    return next((c for c in reversed(calls) if follows(script.place(c), at)), None)


def every_nth(script: Script, place: Place, loop: Loop | None) -> str:
    """The condition with a remainder, inside ``loop``, that ``place`` stands under; else empty."""
    if loop is None or loop not in place.loops:
        return ""
    for arm in place.arms:
        test = arm.test
        if test is not None and test.lineno > loop.lineno and _has_remainder(script.single(test)):
            return arm.condition
    return ""


def _has_remainder(test: ast.expr) -> bool:
    return any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod) for n in ast.walk(test))


def steps_of(script: Script, optimizer: str, function: ast.AST) -> list[ast.Call]:
    """``optimizer.step()`` and ``scaler.step(optimizer)`` of one function."""
    found = []
    for call in script.methods("step"):
        own = not call.args and spelled(receiver(call)) == optimizer
        given = bool(call.args) and spelled(call.args[0]) == optimizer
        if (own or given) and script.tree.function(call) is function:
            found.append(call)
    return found


__all__ = [
    "between",
    "calls_between",
    "every_nth",
    "last_before",
    "method",
    "plain_steps",
    "rescaled_between",
    "steps_of",
]
