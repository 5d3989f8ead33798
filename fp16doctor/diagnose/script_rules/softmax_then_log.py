"""A logarithm is taken of a softmax in a script that computes in 16 bits.

What it checks:
    `log` of the result of `softmax`, directly, through a name, an index or the return of a module
    of the file, under autocast or of a tensor cast to 16 bits.

Why it matters:
    A probability below 2⁻²⁴ is zero in fp16, and its logarithm −inf. CPU autocast keeps softmax in
    16 bits; CUDA autocast runs it in fp32, where it takes a difference of 103 between two logits.
    log_softmax never forms the probability.

Example:
    loss = F.nll_loss(torch.log(F.softmax(logits, dim=-1)), y)

Remedy:
    `F.log_softmax(logits, dim=-1)`, or `F.cross_entropy` on the logits.

References:
    PyTorch documentation, torch.nn.functional.log_softmax
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.amp import in_force
from fp16doctor.diagnose.script_reading.flows import (
    clamped,
    comes_from,
    is_clamp,
    is_half,
    lower_bound,
)
from fp16doctor.diagnose.script_reading.patch import Edit, swap
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.torch_words import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FP16_UNDERFLOW,
)
from fp16doctor.diagnose.script_reading.training import own_cast
from fp16doctor.diagnose.script_reading.tree import keyword, method, receiver
from fp16doctor.diagnose.script_rule import Suspicion, script_rule
from fp16doctor.schema.finding import Severity

_DEPTH = 8  # names that stand for names
_SOFTMAX = {"torch.softmax", "torch.nn.functional.softmax", "torch.special.softmax"}


@script_rule(code="FD721", name="softmax-then-log")
def softmax_then_log(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per logarithm of a softmax under autocast."""
    words = ("autocast", "half", "float16")
    named = "oftmax" in script.text and any(word in script.text for word in words)
    for call in script.calls if named else ():
        inner = _argument(script, call)
        made = comes_from(script, inner, _is_softmax) if inner is not None else []
        if inner is None or not made:
            continue
        cast = in_force(script, call)
        if cast is None or cast.enabled is False:
            half = all(is_half(script, scores) for m in made for scores in _scores(script, m))
            dtype, device = (FLOAT16 if half else None), None
        else:
            dtype, device = cast.dtype, cast.device
        if dtype in (FLOAT16, BFLOAT16):
            # CUDA autocast runs softmax in fp32.
            kept = device == "cuda" or _is_kept_off_zero(script, inner, dtype)
            yield _suspicion(script, call, inner, made, kept)


def _is_kept_off_zero(script: Script, node: ast.expr, dtype: str | None) -> bool:
    """Whether an eps is added, or a bound put, that the format does not round to zero."""
    smallest = FP16_UNDERFLOW if dtype == FLOAT16 else 0.0
    for _ in range(_DEPTH):
        node = script.single(node)
        bound = None
        if isinstance(node, ast.BinOp):
            sides = ((node.left, node.right), (node.right, node.left))
            bound, node = next(
                ((b, n) for n, b in sides if script.number(b) is not None), (None, node)
            )
        elif isinstance(node, ast.Call) and is_clamp(script, node):
            bound, node = lower_bound(script, node), clamped(script, node)
        elif isinstance(node, ast.Call) and not script.name(node) and method(node) != "softmax":
            node = receiver(node) if method(node) else node
        if bound is not None and (script.number(bound) or 0.0) > smallest:
            return True
    return False


def _scores(script: Script, softmax: ast.Call) -> list[ast.expr]:
    """What the softmax is taken of."""
    if method(softmax) == "softmax" and not script.name(softmax):
        return [receiver(softmax)]
    return softmax.args[:1] or [softmax]


def _argument(script: Script, call: ast.Call) -> ast.expr | None:
    """What ``torch.log(x)`` or ``x.log()`` takes the logarithm of."""
    if script.name(call) == "torch.log" and len(call.args) == 1:
        return call.args[0]
    if method(call) == "log" and not call.args and not script.name(call):
        return receiver(call)
    return None


def _is_softmax(script: Script, call: ast.Call) -> bool:
    wide = keyword(call, "dtype") is not None
    if script.name(call) in _SOFTMAX or (method(call) == "softmax" and not script.name(call)):
        given = call.args[:1] if script.name(call) else [receiver(call)]
        return not wide and all(own_cast(script, g) != FLOAT32 for g in given)
    made = script.names.known(call.func)
    return bool(made) and all(script.name(v) == "torch.nn.Softmax" for v in made)


def _suspicion(
    script: Script, call: ast.Call, inner: ast.expr, made: list[ast.Call], kept: bool
) -> Suspicion:
    harm = "is off by its rounding" if kept else "has the logarithm −inf, and NaN in backward"
    return Suspicion(
        node=call,
        what="a logarithm is taken of a softmax",
        reason=(
            f"A probability that rounds to zero {harm}; the combined form works on the logits."
        ),
        advice="use `log_softmax`, or `F.cross_entropy` on the logits",
        severity=Severity.NOTE if kept else Severity.WARNING,
        edits=_edits(script, call, inner, made),
    )


def _edits(script: Script, call: ast.Call, inner: ast.expr, made: list[ast.Call]) -> list[Edit]:
    """The softmax becomes log_softmax where it is made, and the logarithm goes."""
    if len(made) != 1 or not isinstance(made[0].func, ast.Attribute):
        return []
    softmax = made[0]
    renamed = script.source(softmax).replace(
        script.source(softmax.func),
        script.source(softmax.func)[: -len("softmax")] + "log_softmax",
        1,
    )
    if method(softmax) != "softmax":
        return []
    if softmax is inner:
        return swap(script.lines, (call, renamed))
    return swap(script.lines, (call, script.source(inner)), (softmax, renamed))
