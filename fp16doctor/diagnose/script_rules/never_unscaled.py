"""An optimizer steps on gradients that carry the loss scale.

What it checks:
    `optimizer.step()` after backward of a loss that a scaler scaled, with no `unscale_`, no
    `scaler.step` and no division by hand; and a loss multiplied by a constant loss scale (a power
    of two from 128 on, in an fp16 script) where no gradient of the file is ever touched.

Why it matters:
    The gradients are larger than the true ones by the loss scale, and nothing skips a step whose
    gradients are not finite.

Example:
    scaler.scale(loss).backward()
    optimizer.step()

Remedy:
    `scaler.step(optimizer)` and `scaler.update()`.

References:
    PyTorch documentation, torch.amp.GradScaler.step
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.amp import (
    loss_backwards,
    scaled_backwards,
    scaled_by,
    scaled_in_file,
    scaler_calls,
    sixteen_bit,
)
from fp16doctor.diagnose.script_reading.order import follows
from fp16doctor.diagnose.script_reading.patch import Edit, insert_before, replace_call
from fp16doctor.diagnose.script_reading.products import factors, uses
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.steps import (
    calls_between,
    last_before,
    plain_steps,
    rescaled_between,
)
from fp16doctor.diagnose.script_reading.torch_words import FLOAT16
from fp16doctor.diagnose.script_reading.tree import mentions, receiver, spelled
from fp16doctor.diagnose.script_rule import Suspicion, script_rule
from fp16doctor.schema.finding import Severity

_SMALLEST_SCALE = 128.0  # below, a power of two may as well be a loss weight


@script_rule(code="FD705", name="never-unscaled")
def never_unscaled(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per plain step on scaled gradients."""
    scaled, every = scaled_backwards(script), loss_backwards(script)
    taken = {spelled(c.args[0]) for c in scaler_calls(script, "step") if c.args}
    for step in plain_steps(script):
        backward = last_before(script, every, step)
        if backward is None or spelled(receiver(step)) in taken:
            continue
        if backward in scaled:
            yield from _by_scaler(script, backward, step)
        else:
            yield from _by_hand(script, backward, step)


def _by_scaler(script: Script, backward: ast.Call, step: ast.Call) -> Iterator[Suspicion]:
    scaler = scaled_by(script, backward)
    if scaler is None or rescaled_between(script, backward, step):
        return
    if scaler_calls(script, "unscale_") or calls_between(script, backward, step, reaching=scaler):
        return
    name, optimizer = spelled(scaler), spelled(receiver(step))
    statement, lines = script.tree.statement(step), script.lines
    updated = bool(scaler_calls(script, "update"))
    new = [f"{name}.step({optimizer})", *([] if updated else [f"{name}.update()"])]
    yield Suspicion(
        node=step,
        what=f"`{optimizer}.step()` applies gradients that carry the scale of `{name}`",
        reason=(
            f"Only `{name}.step` and `{name}.unscale_` divide by the loss scale; no line between "
            "backward and this step does, and no step is skipped where a gradient is inf."
        ),
        advice=" and ".join(f"`{line}`" for line in new) + " in its place",
        severity=Severity.ERROR,
        edits=replace_call(lines, statement, step, *new),
    )


def _by_hand(script: Script, backward: ast.Call, step: ast.Call) -> Iterator[Suspicion]:
    if FLOAT16 not in sixteen_bit(script) or scaled_in_file(script):
        return
    if any(mentions(node, "grad") for node in script.tree.nodes if isinstance(node, ast.Attribute)):
        return
    for factor in factors(script, receiver(backward)):
        size = script.number(factor.node)
        if size is None or size < _SMALLEST_SCALE or math.frexp(size)[0] != 0.5:
            continue
        if factor.divides or uses(script, factor.node) > 1 or _helped(script, backward, step):
            return
        yield _constant(script, backward, step, factor.node)


def _helped(script: Script, backward: ast.Call, step: ast.Call) -> bool:
    """Whether a function that could divide is called in between."""
    places = script.place(backward), script.place(step)
    return any(
        follows(places[0], script.place(c)) and follows(script.place(c), places[1])
        for c in script.calls
        if isinstance(c.func, ast.Name) or mentions(c.func, "self")
    )


def _constant(script: Script, backward: ast.Call, step: ast.Call, scale: ast.expr) -> Suspicion:
    text, optimizer = spelled(scale), spelled(receiver(step))
    division: list[Edit] = [
        insert_before(
            script.lines,
            script.tree.statement(step),
            f"for group in {optimizer}.param_groups:",
            '    for p in group["params"]:',
            "        if p.grad is not None:",
            f"            p.grad.div_({text})",
        )
    ]
    return Suspicion(
        node=backward,
        what=f"the loss is multiplied by `{text}` before backward and no gradient is divided by it",
        reason="The optimizer applies gradients that are larger than the true ones by that factor.",
        advice=f"divide the gradients by `{text}` before the step, or use torch.amp.GradScaler",
        severity=Severity.ERROR,
        edits=division,
    )
