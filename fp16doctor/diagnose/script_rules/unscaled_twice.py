"""Gradients are divided by the loss scale twice in one step.

What it checks:
    Two `unscale_` of one optimizer with no update between them; `unscale_` in every micro-batch
    while the step comes every n-th; a division of `.grad` by `get_scale()` before `scaler.step`.

Why it matters:
    The scaler raises at its second `unscale_`. After a division by hand it does not know of it
    and divides again: with a scale of 65536 an update of 1e-3 becomes 1.5e-8.

Example:
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.unscale_(optimizer)

Remedy:
    `scaler.unscale_(optimizer)` once a step, after the last backward, and no division by hand.

References:
    PyTorch documentation, torch.amp.GradScaler.unscale_
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.amp import scaled_backwards, scaler_calls
from fp16doctor.diagnose.script_reading.order import always_before, follows
from fp16doctor.diagnose.script_reading.patch import remove_call, replace_statement
from fp16doctor.diagnose.script_reading.products import factors
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.steps import between, every_nth
from fp16doctor.diagnose.script_reading.training import gradient_scalings
from fp16doctor.diagnose.script_reading.tree import method, receiver, spelled
from fp16doctor.diagnose.script_rule import Suspicion, script_rule
from fp16doctor.schema.finding import Severity


@script_rule(code="FD704", name="unscaled-twice")
def unscaled_twice(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per line that divides again, or lets the scaler divide again."""
    unscales = [c for c in scaler_calls(script, "unscale_") if c.args]
    updates = scaler_calls(script, "update") + scaler_calls(script, "step")
    for index, second in enumerate(unscales):
        for first in unscales[:index]:
            if _same(first, second) and _again(script, first, second, updates):
                yield _repeated(script, second)
                break
        else:
            yield from _per_microbatch(script, second)
    yield from _by_hand(script)


def _same(first: ast.Call, second: ast.Call) -> bool:
    same_scaler = spelled(receiver(first)) == spelled(receiver(second))
    return same_scaler and spelled(first.args[0]) == spelled(second.args[0])


def _again(script: Script, first: ast.Call, second: ast.Call, updates: list[ast.Call]) -> bool:
    one, two = script.place(first), script.place(second)
    if one.loops != two.loops or not always_before(one, two):
        return False
    return not any(between(script, first, u, second) for u in updates)


def _repeated(script: Script, call: ast.Call) -> Suspicion:
    statement = script.tree.statement(call)
    return Suspicion(
        node=call,
        what=f"`{spelled(call)}` runs a second time before the update",
        reason='The scaler raises RuntimeError: "unscale_() has already been called".',
        advice="call it once a step",
        severity=Severity.ERROR,
        edits=[remove_call(script.lines, statement, call)],
    )


def _per_microbatch(script: Script, call: ast.Call) -> Iterator[Suspicion]:
    place = script.place(call)
    if place.loop is None or every_nth(script, place, place.loop):
        return
    steps = [s for s in scaler_calls(script, "step") if s.args and _same(s, call)]
    steps = [s for s in steps if script.tree.function(s) is script.tree.function(call)]
    in_turn = [b for b in scaled_backwards(script) if script.place(b).loop is place.loop]
    if in_turn and steps and all(every_nth(script, script.place(s), place.loop) for s in steps):
        yield Suspicion(
            node=call,
            what=f"`{spelled(call)}` runs in each micro-batch, the step does not",
            reason=(
                'In the second micro-batch the scaler raises RuntimeError: "unscale_() has already '
                'been called"; gradients that are added later would carry the scale.'
            ),
            advice="call it under the condition of the step, after the last backward",
            severity=Severity.ERROR,
        )


def _by_hand(script: Script) -> Iterator[Suspicion]:
    steps = [s for s in scaler_calls(script, "step") if s.args]
    for node in gradient_scalings(script) if steps else ():
        after = [s for s in steps if follows(script.place(node), script.place(s))]
        if not after or not _divides_by_scale(script, node):
            continue
        call = f"{spelled(receiver(after[0]))}.unscale_({spelled(after[0].args[0])})"
        unscaled = [
            u
            for u in scaler_calls(script, "unscale_")
            if follows(script.place(u), script.place(after[0]))
        ]
        if not unscaled and isinstance(node, (ast.expr, ast.stmt)):
            yield _hand(script, node, call)


def _divides_by_scale(script: Script, node: ast.AST) -> bool:
    """``/= scaler.get_scale()``, ``.div_(scaler.get_scale())``, or ``*=`` of its inverse."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Div, ast.Mult)):
        found = factors(script, node.value, isinstance(node.op, ast.Div))
    elif isinstance(node, ast.Call) and method(node) in ("div_", "mul_") and node.args:
        found = factors(script, node.args[0], method(node) == "div_")
    else:
        return False
    return any(factor.divides and _reads_scale(script, factor.node) for factor in found)


def _reads_scale(script: Script, node: ast.expr) -> bool:
    return method(script.single(node)) == "get_scale"


def _hand(script: Script, node: ast.expr | ast.stmt, call: str) -> Suspicion:
    whole = _whole_loop(script, script.tree.statement(node))
    return Suspicion(
        node=node,
        what="gradients are divided by the loss scale by hand, and `scaler.step` divides again",
        reason=(
            "The scaler knows of no division but its own, so what is applied is the gradient "
            "divided by the scale."
        ),
        advice=f"`{call}` in place of the division: the scaler remembers it",
        severity=Severity.ERROR,
        edits=[] if whole is None else [replace_statement(script.lines, whole, call)],
    )


def _whole_loop(script: Script, statement: ast.stmt) -> ast.stmt | None:
    """The loop over parameters that does nothing but divide; None where it does more."""
    found: ast.stmt | None = None if script.place(statement).loop is not None else statement
    for above in script.tree.ancestors(statement):
        plain = isinstance(above, (ast.For, ast.If)) and not above.orelse
        if not plain or len(above.body) != 1:  # type: ignore[attr-defined]
            return found
        if isinstance(above, ast.For):
            found = above
    return found
