"""A line of the script with a guard around what goes into one op.

Only where the line leaves no doubt: it is a statement of its own. Of several such ops each gets
the guard, so that it does not matter which of them it was.

Must not know why an op is guarded.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from fp16doctor.prescribe.edit import LATER, called, is_function_of_torch, nodes

_NAMES = {"log": ("log",), "log2": ("log2",), "log10": ("log10",), "log1p": ("log1p",),
          "sqrt": ("sqrt",), "rsqrt": ("rsqrt",), "pow": ("pow",), "div": ("div", "true_divide"),
          "acos": ("acos", "arccos"), "asin": ("asin", "arcsin"), "reciprocal": ("reciprocal",),
          "masked_fill": ("masked_fill",), "logsumexp": ("logsumexp",)}  # fmt: skip
_CASTS = ("float", "half", "bfloat16", "double", "to", "type", "type_as")
_OF_A_REDUCTION = ("dim", "keepdim")  # keywords that leave the operand alone
_NOT_TENSORS = ("math", "np", "numpy", "self", "cmath")
_ATOMS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Constant)
_BEFORE_A_SUM = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.MatMult, ast.Pow)


@dataclass(frozen=True, slots=True)
class Operand:
    """What goes into an op of a kind on a line."""

    start: int  # in bytes of the line
    end: int
    text: str
    node: ast.expr
    is_argument: bool  # stands alone between a call's parentheses

    @property
    def is_cast(self) -> bool:
        """The line brings it into another format itself."""
        return isinstance(self.node, ast.Call) and called(self.node) in _CASTS


def operands_on(line: str, op: str) -> tuple[Operand, ...]:
    """Return what every ``op`` of a line is given, of a quotient the divisor; () where in doubt."""
    every = nodes(line)
    if any(isinstance(n, LATER) for n in every):
        return ()
    found = [(n, x) for n in every if (x := _operand(n, op)) is not None]
    places = [_found(line, x, whole) for whole, x in found]
    places.sort(key=lambda x: x.start)
    nested = any(a.end > b.start for a, b in pairwise(places))
    return () if nested else tuple(places)


def with_bounds(line: str, op: str, low: str, high: str = "") -> str | None:
    """Return the line with ``x.clamp(min=low)`` for each operand."""
    bounds = f"{low}, {high}" if high else f"min={low}"

    def bounded(x: Operand) -> str:
        inner = x.text if isinstance(x.node, _ATOMS) else f"({x.text})"
        return f"{inner}.clamp({bounds})"

    return _with_each(line, op, bounded)


def with_added(line: str, op: str, number: str) -> str | None:
    """Return the line with ``x + number`` for each operand."""

    def raised(x: Operand) -> str:
        inner = x.text if _is_term(x.node) else f"({x.text})"
        return f"{inner} + {number}" if x.is_argument else f"({inner} + {number})"

    return _with_each(line, op, raised)


def _with_each(line: str, op: str, new: Callable[[Operand], str]) -> str | None:
    places, raw = operands_on(line, op), line.encode()
    for x in reversed(places):
        raw = raw[: x.start] + new(x).encode() + raw[x.end :]
    return raw.decode() if places else None


def with_finite_mask(line: str) -> str | None:
    """Return the line with a finite number for the −inf of its only ``masked_fill``."""
    calls = [n for n in nodes(line) if isinstance(n, ast.Call) and called(n) == "masked_fill"]
    values = [a for c in calls for a in c.args if _is_minus_inf(a)]
    if len(calls) != 1 or len(values) != 1 or not isinstance(calls[0].func, ast.Attribute):
        return None
    owner = calls[0].func.value
    if is_function_of_torch(calls[0]):
        owner = calls[0].args[0]
    if not isinstance(owner, ast.Name):
        return None
    new = f"torch.finfo({owner.id}.dtype).min"
    start, end = values[0].col_offset, values[0].end_col_offset or 0
    raw = line.encode()
    return (raw[:start] + new.encode() + raw[end:]).decode()


def _operand(node: ast.AST, op: str) -> ast.expr | None:
    """Return what a node hands to the op, None where it is no such op."""
    if isinstance(node, ast.BinOp):
        if op == "div" and isinstance(node.op, ast.Div):
            return None if _is_number(node.right) or _is_number(node.left) else node.right
        if op == "reciprocal" and isinstance(node.op, ast.Div):
            return node.right if _is_number(node.left) else None
        return node.left if op == "pow" and isinstance(node.op, ast.Pow) else None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if called(node, strip=False) not in _NAMES.get(op, ()):
        return None
    given = list(node.args) if is_function_of_torch(node) else [node.func.value, *node.args]
    place = 1 if op == "div" else 0
    if len(given) <= place or any(isinstance(g, ast.Starred) for g in given):
        return None
    first = given[0]
    foreign = isinstance(first, ast.Name) and first.id in _NOT_TENSORS
    more = [k for k in node.keywords if k.arg not in _OF_A_REDUCTION]
    return None if foreign or more else given[place]


def _found(line: str, node: ast.expr, whole: ast.AST) -> Operand:
    raw = line.encode()
    start, end = node.col_offset, node.end_col_offset or 0
    text = raw[start:end].decode()
    arguments = whole.args if isinstance(whole, ast.Call) else []
    is_argument = node in arguments
    if not is_argument:  # parentheses around it are its own
        while raw[:start].rstrip().endswith(b"(") and raw[end:].lstrip().startswith(b")"):
            start = len(raw[:start].rstrip()) - 1
            end += len(raw[end:]) - len(raw[end:].lstrip()) + 1
    return Operand(start, end, text, node, is_argument)


def _is_term(node: ast.expr) -> bool:
    """Tell whether ``+`` behind it takes all of it."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, _BEFORE_A_SUM)
    return isinstance(node, (*_ATOMS, ast.UnaryOp)) and not _is_negation(node)


def _is_negation(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _is_number(node: ast.AST) -> bool:
    """A number that Python computes, whatever of numbers it is made of."""
    return all(
        isinstance(n, (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop))
        for n in ast.walk(node)
    )


def _is_minus_inf(node: ast.AST) -> bool:
    return ast.unparse(node) in _MINUS_INF


def _spellings() -> Iterator[str]:
    for module in ("torch", "math", "np", "numpy"):
        yield f"-{module}.inf"
    yield from ("float('-inf')", "-float('inf')", "float('-Infinity')", "-inf")


_MINUS_INF = frozenset(_spellings())
