"""The loss is multiplied by the loss scale and by its inverse before backward.

What it checks:
    In an fp16 script: the product that `backward` is called on, taken apart through the names
    that stand for it, holds a factor and the same factor as a divisor.

Why it matters:
    The two cancel before backward runs, so gradients travel backward as small as without a loss
    scale and underflow in fp16. The division belongs to the gradients, after backward.

Example:
    loss = criterion(model(x), y) * loss_scale
    (loss * (1.0 / loss_scale)).backward()

Remedy:
    `torch.amp.GradScaler`; or `loss.backward()` and a division of every `.grad` by the scale.

References:
    Micikevicius et al., "Mixed Precision Training", arXiv 1710.03740, section 3.2
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.beside_run import gradients_underflowed
from fp16doctor.diagnose.script_reading.amp import loss_backwards, sixteen_bit
from fp16doctor.diagnose.script_reading.order import follows
from fp16doctor.diagnose.script_reading.patch import Edit, insert_before, swap
from fp16doctor.diagnose.script_reading.products import Factor, factors
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.steps import plain_steps
from fp16doctor.diagnose.script_reading.torch_words import FLOAT16
from fp16doctor.diagnose.script_reading.tree import receiver, spelled
from fp16doctor.diagnose.script_rule import Suspicion, script_rule
from fp16doctor.schema.finding import Severity


@script_rule(code="FD706", name="cancelled-loss-scale", stands=gradients_underflowed)
def cancelled_loss_scale(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per backward of a product whose scale cancels."""
    for backward in loss_backwards(script) if FLOAT16 in sixteen_bit(script) else ():
        pair = _cancelling(script, list(factors(script, receiver(backward))))
        if pair is not None:
            yield _suspicion(script, backward, pair)


def _cancelling(script: Script, found: list[Factor]) -> ast.expr | None:
    for one in found:
        for other in found:
            if not one.divides and _undoes(script, one, other):
                return one.node
    return None


def _undoes(script: Script, one: Factor, other: Factor) -> bool:
    if one is other:
        return False
    if other.divides and spelled(one.node) == spelled(other.node):
        return isinstance(one.node, (ast.Name, ast.Attribute, ast.Constant))
    size, inverse = script.number(one.node), script.number(other.node)
    if size is None or inverse is None or size <= 1:
        return False
    return size == inverse if other.divides else size * inverse == 1.0


def _suspicion(script: Script, backward: ast.Call, scale: ast.expr) -> Suspicion:
    text = spelled(scale)
    return Suspicion(
        node=backward,
        what=f"the loss is multiplied by `{text}` and divided by it again before backward",
        reason=(
            "The factors cancel before backward runs: gradients are as small as without a loss "
            "scale, and those of 2⁻²⁵ or less become zero in fp16."
        ),
        advice=f"call backward on the scaled loss and divide the gradients by `{text}` afterwards",
        severity=Severity.ERROR,
        edits=_edits(script, backward, text),
    )


def _edits(script: Script, backward: ast.Call, scale: str) -> list[Edit]:
    here = script.place(backward)
    after = [s for s in plain_steps(script) if follows(here, script.place(s))]
    product = receiver(backward)
    kept = _scaled_part(script, product)
    if not after or kept is None:
        return []
    optimizer = spelled(receiver(after[0]))
    division = insert_before(
        script.lines,
        script.tree.statement(after[0]),
        f"for group in {optimizer}.param_groups:",
        '    for p in group["params"]:',
        "        if p.grad is not None:",
        f"            p.grad.div_({scale})",
    )
    return [*swap(script.lines, (backward, f"{kept}.backward()")), division]


def _scaled_part(script: Script, product: ast.expr) -> str | None:
    """``loss`` of ``loss * (1 / s)`` where ``loss`` holds the factor already."""
    if not isinstance(product, ast.BinOp) or not isinstance(product.left, ast.Name):
        return None
    right = list(factors(script, product.right, isinstance(product.op, ast.Div)))
    return product.left.id if all(f.divides for f in right) else None
