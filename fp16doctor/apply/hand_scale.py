"""Changes a constant loss scale in the text of a script, on both sides of backward.

Must not know how the script is run.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

_FACTORS = (ast.Mult, ast.Div)
_CALLS = frozenset(("mul", "mul_", "div", "div_", "true_divide", "multiply", "divide"))
_FOLDED: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.LShift: lambda a, b: int(a) << int(b),
}


def with_scale(tree: ast.Module, old: float, new: float) -> ast.Module | None:
    """Return the tree with the number ``old`` replaced where something is multiplied or divided.

    A number counts if it stands there itself, or is assigned to a name that does. None where
    there is none.
    """
    change = _Change(_factor_names(tree), old, new)
    change.visit(tree)
    return ast.fix_missing_locations(tree) if change.n_changed else None


def _factor_names(tree: ast.Module) -> frozenset[str]:
    """Return the names that are a factor or a divisor somewhere."""
    names = set()
    for node in ast.walk(tree):
        for operand in _factors(node):
            if isinstance(operand, ast.Name):
                names.add(operand.id)
            elif isinstance(operand, ast.Attribute):
                names.add(operand.attr)
    return frozenset(names)


def _factors(node: ast.AST) -> tuple[ast.expr, ...]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, _FACTORS):
        return node.left, node.right
    if isinstance(node, ast.AugAssign) and isinstance(node.op, _FACTORS):
        return (node.value,)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return tuple(node.args) if node.func.attr in _CALLS else ()
    return ()


class _Change(ast.NodeTransformer):
    def __init__(self, names: frozenset[str], old: float, new: float) -> None:
        self._names, self._old, self._new = names, old, new
        self.n_changed = 0

    def visit(self, node: ast.AST) -> ast.AST:
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                setattr(node, field, [self._one(node, field, i, v) for i, v in enumerate(value)])
            elif isinstance(value, ast.AST):
                setattr(node, field, self._one(node, field, 0, value))
        return node

    def _one(self, parent: ast.AST, field: str, place: int, child: object) -> object:
        if not isinstance(child, ast.AST):
            return child
        if isinstance(child, ast.expr) and _number(child) == self._old:
            if child in _factors(parent) or self._is_given(parent, field, place):
                self.n_changed += 1
                return ast.copy_location(ast.Constant(self._new), child)
            return child
        return self.visit(child)

    def _is_given(self, parent: ast.AST, field: str, place: int) -> bool:
        """Tell whether an expression is assigned to a factor's name, or is its default."""
        if isinstance(parent, ast.Assign) and field == "value":
            return any(_name(t) in self._names for t in parent.targets)
        if isinstance(parent, ast.AnnAssign) and field == "value":
            return _name(parent.target) in self._names
        if isinstance(parent, ast.keyword):
            return (parent.arg or "") in self._names
        if isinstance(parent, ast.arguments):
            return self._is_default(parent, field, place)
        return False

    def _is_default(self, given: ast.arguments, field: str, place: int) -> bool:
        if field == "defaults":
            names = [a.arg for a in (*given.posonlyargs, *given.args)][-len(given.defaults) :]
        else:
            names = [a.arg for a in given.kwonlyargs]
        return field in ("defaults", "kw_defaults") and names[place] in self._names


def _name(target: ast.AST) -> str:
    if isinstance(target, ast.Attribute):
        return target.attr
    return target.id if isinstance(target, ast.Name) else ""


def _number(node: ast.expr) -> float | None:
    """Return the value of a number, or of arithmetic on numbers alone."""
    if isinstance(node, ast.Constant):
        value = node.value
        return float(value) if type(value) in (int, float) else None  # type: ignore[arg-type]
    if not isinstance(node, ast.BinOp) or type(node.op) not in _FOLDED:
        return None
    left, right = _number(node.left), _number(node.right)
    if left is None or right is None:
        return None
    try:
        return float(_FOLDED[type(node.op)](left, right))
    except (ArithmeticError, ValueError):
        return None
