"""What to change where an op, or the derivative of one, has no finite value at its operand.

Must not know severities. Derivatives: Abramowitz and Stegun, 4.4.52-4.4.55 (inverse circular
functions); d sqrt(x)/dx = 1/(2 sqrt(x)).
"""

from __future__ import annotations

import ast
import re

from fp16doctor.diagnose.families import DIVISIONS, LOGARITHMS, base_op
from fp16doctor.diagnose.limits import limits
from fp16doctor.schema.location import Phase
from fp16doctor.schema.trace import Event

_NORMS = {"norm", "vector_norm", "sqrt", "std", "abs", "hypot"}
_COUNTS = {"count_nonzero", "bincount"}
_ARCS = ("acos", "asin", "atanh")  # defined between -1 and 1, steep at both ends
_IN_A_LINE = {
    "two arguments": re.compile(r"\b(?:arc|a)tan2\b"),
    "sum of logs": re.compile(r"\blog(?:sum|add|cumsum)exp\b"),
    "arc": re.compile(r"\b(?:arc|a)(?:cosh?|sin|tanh)\b"),
    "root": re.compile(r"sqrt\b|norm\b|dist(?:ance)?\b|\bstd(?:_mean)?\b|\bpow\b|\*\*|\bhypot\b"),
    "log": re.compile(r"\b(?:log(?:2|10|1p)?|xlogy|logit)\b"),
    "quotient": re.compile(r"[^/]/[^/]|\b(?:div|reciprocal)\b"),
}


def is_outside(op: str, value: float) -> bool:
    """Tell whether a real op has no value there at all, not even an infinite one."""
    name = base_op(op)
    if name in ("acos", "asin"):
        return abs(value) > 1
    if name == "log1p":
        return value < -1
    return value < 0 and (name in LOGARITHMS - {"xlogy"} or name in ("sqrt", "rsqrt"))


def domain_advice(event: Event) -> str:
    """Imperative for the reader: where to clamp, or what to add a constant to."""
    phase = event.site.phase
    if phase is Phase.BACKWARD:
        return _derivative_advice(event)
    if phase is Phase.OPTIMIZER and base_op(event.site.op) in DIVISIONS and _last_is_zero(event):
        return "add a small constant to the divisor of the update, as `eps` of an optimizer does"
    return _forward_advice(event)


def _small(event: Event) -> str:
    """A constant that the format can hold as a normal number."""
    return "1e-12" if limits(event.format).smallest_normal < 1e-12 else "1e-4"


def _gap(event: Event) -> str:
    """A distance to 1 that the format can hold next to 1."""
    return {"fp32": "1e-6", "fp64": "1e-6", "fp16": "1e-3"}.get(event.format, "1e-2")


def _least_log(event: Event) -> str:
    return "-1e4" if event.format == "fp16" else "-1e30"


def _last_is_zero(event: Event) -> bool:
    return not event.operands or event.operands[-1][1] == 0


def _forward_advice(event: Event) -> str:
    op, small = base_op(event.site.op), _small(event)
    if op == "rsqrt":
        return f"add an eps under the root, e.g. `torch.rsqrt(x + {small})`"
    if "sqrt" in op:
        return f"clamp it above 0, e.g. `x.clamp(min={small})`: at 0 the derivative is infinite"
    if op in LOGARITHMS:
        bound = f"{_gap(event)} - 1" if op == "log1p" else small
        return f"clamp it to the domain of `{op}`, e.g. `x.clamp(min={bound})`"
    if op in DIVISIONS and _last_is_zero(event):
        return f"clamp the divisor away from 0, e.g. {_divisor_bound(event)}"
    if op == "pow":
        return f"clamp the base above 0, e.g. `x.clamp(min={small})`"
    if op in _ARCS:
        return f"clamp it to the domain of `{op}`, {_inside(event)}"
    if "softmax" in op or "attention" in op:
        return "give rows without any unmasked entry a result of their own"
    return "guard the case that has no finite result"


def _divisor_bound(event: Event) -> str:
    """One bound where the line's only quotient shows what it divides by, else both."""
    count, norm = "`count.clamp(min=1)`", f"`norm.clamp(min={_small(event)})`"
    calls = _calls_in_divisor(event)
    if calls & _NORMS:
        return norm
    if calls & _COUNTS:
        return count
    if "sum" in calls:
        return f"{count} for a count, `total.clamp(min={_small(event)})` for any other sum"
    return f"{count} for a count, {norm} for a norm"


def _calls_in_divisor(event: Event) -> set[str]:
    text = event.site.source.text if event.site.source is not None else None
    try:
        tree = ast.parse(text or "")
    except SyntaxError:
        return set()
    quotients = [n for n in ast.walk(tree) if isinstance(n, ast.BinOp) and _is_quotient(n)]
    if len(quotients) != 1:
        return set()
    inside = (n for n in ast.walk(quotients[0].right) if isinstance(n, ast.Call))
    return {n.func.attr for n in inside if isinstance(n.func, ast.Attribute)}


def _is_quotient(node: ast.BinOp) -> bool:
    return isinstance(node.op, ast.Div) and not isinstance(node.right, ast.Constant)


def _inside(event: Event) -> str:
    gap = _gap(event)
    return f"e.g. `x.clamp(-1 + {gap}, 1 - {gap})`"


def _derivative_advice(event: Event) -> str:
    """The op of the backward pass is a part of a derivative; the line says of which function."""
    small = _small(event)
    return {
        "two arguments": "the derivative of atan2 has no finite value where both arguments are 0: "
        "give such elements another argument before the call",
        "sum of logs": "the derivative of logsumexp is not finite where all its terms are −inf: "
        f"put a finite number in their place, e.g. `x.clamp(min={_least_log(event)})`",
        "arc": "the derivative is infinite at the border of the domain: keep the input inside it, "
        + _inside(event),
        "root": "the derivative of a root or norm is not finite at 0: add an eps under "
        f"the root, e.g. `(x.pow(2).sum(-1) + {small}).sqrt()`",
        "log": "the derivative of a logarithm is infinite at 0: clamp its input in front of it, "
        f"e.g. `x.clamp(min={small})`; a mask behind it comes too late",
        "quotient": "the derivative of a quotient is not finite where the divisor is 0: replace "
        "such divisors in front of the division; a mask behind it comes too late",
        "": "a derivative has no finite value there: keep the operand of the forward op off that "
        "point, for a root or norm with an eps under the root, e.g. "
        f"`(x.pow(2).sum(-1) + {small}).sqrt()`",
    }[_function_of(event)]


def _function_of(event: Event) -> str:
    """Which function the recorded line holds; "" where it shows none or several."""
    text = event.site.source.text if event.site.source is not None else None
    found = [name for name, words in _IN_A_LINE.items() if text and words.search(text)]
    if len(found) > 1 and base_op(event.site.op) in {"div", "pow"} and "root" in found:
        return "root"  # only a root divides the gradient by its own result
    return found[0] if len(found) == 1 else ""
