"""Scores in fp16 are masked with a number that fp16 does not hold.

What it checks:
    `masked_fill` with a finite constant below −65504 on scores that are certainly fp16: a product
    of matrices in fp16, or a cast; `finfo.min`, or an fp16 mask times such a constant, added to
    such scores.

Why it matters:
    `masked_fill` raises "value cannot be converted to type c10::Half without overflow". A sum of
    finfo.min and a score of −16 or less is −inf, and a row of −inf makes softmax NaN.

Example:
    scores = (q @ k.transpose(-1, -2)).masked_fill(mask, -1e9)

Remedy:
    `masked_fill(mask, torch.finfo(scores.dtype).min)`, or `float("-inf")` where no row is masked
    whole.

References:
    https://github.com/NVIDIA/apex/issues/1052; https://github.com/huggingface/transformers/pull/17306
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.flows import is_half
from fp16doctor.diagnose.script_reading.patch import swap
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.torch_words import FP16_MAX
from fp16doctor.diagnose.script_reading.tree import argument, receiver
from fp16doctor.diagnose.script_rule import Suspicion, script_rule
from fp16doctor.schema.finding import Severity


@script_rule(code="FD722", name="mask-fill-overflow")
def mask_fill_overflow(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per mask value that fp16 scores cannot take."""
    if "float16" not in script.text and "half" not in script.text and "autocast" not in script.text:
        return
    for call in script.methods("masked_fill", "masked_fill_"):
        value = argument(call, 1, "value")
        size = script.number(value)
        if value is not None and _beyond(size) and is_half(script, receiver(call)):
            yield _constant(script, call, value, receiver(call))
    for node in script.tree.nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            yield from _added(script, node)


def _beyond(size: float | None) -> bool:
    return size is not None and math.isfinite(size) and abs(size) > FP16_MAX


def _constant(
    script: Script, call: ast.expr | ast.stmt, value: ast.expr, scores: ast.expr
) -> Suspicion:
    named = isinstance(scores, (ast.Name, ast.Attribute))
    limit = f"torch.finfo({script.source(scores)}.dtype).min" if named else 'float("-inf")'
    return Suspicion(
        node=call,
        what=f"fp16 scores are filled with {script.source(value)}, beyond the fp16 maximum 65504",
        reason=(
            "The number has no fp16 value: the call raises RuntimeError "
            '"value cannot be converted to type c10::Half without overflow".'
        ),
        advice=f"fill with `{limit}`",
        severity=Severity.ERROR,
        edits=swap(script.lines, (value, limit)),
    )


def _added(script: Script, node: ast.BinOp) -> Iterator[Suspicion]:
    for scores, mask in ((node.left, node.right), (node.right, node.left)):
        number = _half_product(script, mask)
        if number is not None and is_half(script, scores):
            yield _added_constant(script, node, number)
        if not _holds_minimum(script, mask) or not is_half(script, scores):
            continue
        yield Suspicion(
            node=node,
            what="finfo.min is added to fp16 scores",
            reason=(
                "−65504 plus a score of −16 or less is −inf in fp16; a row of nothing but −inf "
                "makes softmax NaN."
            ),
            advice="fill the scores with finfo.min (`masked_fill`) in place of adding it",
        )


def _half_product(script: Script, mask: ast.expr) -> ast.expr | None:
    """The constant beyond fp16 that an fp16 mask is multiplied by."""
    mask = script.single(mask)
    if isinstance(mask, ast.BinOp) and isinstance(mask.op, ast.Mult):
        for one, other in ((mask.left, mask.right), (mask.right, mask.left)):
            if _beyond(script.number(one)) and is_half(script, other):
                return one
    return None


def _added_constant(script: Script, node: ast.BinOp, number: ast.expr) -> Suspicion:
    return Suspicion(
        node=node,
        what=f"an fp16 mask times {script.source(number)} is added to fp16 scores",
        reason=(
            "The product is beyond the fp16 maximum 65504, −inf; a row of nothing but −inf makes "
            "softmax NaN."
        ),
        advice="fill the scores with finfo.min (`masked_fill`) in place of adding",
    )


def _holds_minimum(script: Script, mask: ast.expr) -> bool:
    """Whether the mask is a product with ``torch.finfo(torch.float16 or x.dtype).min``."""
    mask = script.single(mask)
    if isinstance(mask, ast.BinOp) and isinstance(mask.op, ast.Mult):
        return _holds_minimum(script, mask.left) or _holds_minimum(script, mask.right)
    if not isinstance(mask, ast.Attribute) or mask.attr != "min":
        return False
    finfo = script.single(mask.value)
    if script.name(finfo) != "torch.finfo" or not isinstance(finfo, ast.Call) or not finfo.args:
        return False
    of = finfo.args[0]
    if script.names.dotted(of) in ("torch.float16", "torch.half"):
        return True
    return isinstance(of, ast.Attribute) and of.attr == "dtype" and is_half(script, of.value)
