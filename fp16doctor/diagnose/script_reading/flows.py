"""Where a tensor comes from, and whether it is certainly in 16 bits.

Must not know any rule.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from fp16doctor.diagnose.script_reading.amp import Autocast, in_force
from fp16doctor.diagnose.script_reading.bindings import Param
from fp16doctor.diagnose.script_reading.half_modules import kept_half
from fp16doctor.diagnose.script_reading.names import method_named
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.torch_words import FLOAT16
from fp16doctor.diagnose.script_reading.training import made_by, own_cast
from fp16doctor.diagnose.script_reading.tree import argument, method, receiver

Test = Callable[[Script, ast.Call], bool]

# Methods whose result has the values and the format of the tensor itself.
_SAME_VALUES = {
    "view", "reshape", "flatten", "squeeze", "unsqueeze", "permute", "transpose", "t", "contiguous",
    "gather", "detach", "clone", "expand", "index_select", "masked_select", "mT",
}  # fmt: skip
_CLAMPS = {"torch.clamp", "torch.clamp_min", "torch.clip"}
_MATMULS = {"torch.matmul", "torch.bmm", "torch.mm", "torch.einsum", "torch.baddbmm"}
_MATMUL_METHODS = {"matmul", "bmm", "mm", "baddbmm"}
_MATMUL_LAYERS = {
    f"torch.nn.{name}" for name in ("Linear", "Conv1d", "Conv2d", "Conv3d", "Bilinear")
}
_DEPTH = 8


def comes_from(script: Script, node: ast.expr, test: Test) -> list[ast.Call]:
    """The calls passing ``test`` that ``node`` certainly is the result of; empty if not certain.

    Names bound once, views and the return of a module's forward in the file are followed; a cast
    to fp32 ends the search.
    """
    found: list[ast.Call] = []
    return found if _trace(script, node, test, found, 0) else []


def _trace(script: Script, node: ast.expr, test: Test, found: list[ast.Call], depth: int) -> bool:
    if depth > _DEPTH:
        return False
    known = [node] if isinstance(node, ast.Call) else script.names.known(node)
    return bool(known) and all(_value_from(script, v, test, found, depth) for v in known)


def _value_from(
    script: Script, node: ast.expr, test: Test, found: list[ast.Call], depth: int
) -> bool:
    if isinstance(node, ast.Subscript):
        return _trace(script, node.value, test, found, depth + 1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):  # an eps
        pairs = ((node.left, node.right), (node.right, node.left))
        tensors = [t for t, eps in pairs if script.number(eps) is not None]
        return len(tensors) == 1 and _trace(script, tensors[0], test, found, depth + 1)
    if not isinstance(node, ast.Call):
        return False
    if test(script, node):
        found.append(node)
        return True
    if is_clamp(script, node):
        return _trace(script, clamped(script, node), test, found, depth + 1)
    if method(node) in _SAME_VALUES and not script.name(node):
        return _trace(script, receiver(node), test, found, depth + 1)
    results = _returns(script, node)
    return bool(results) and all(_trace(script, r, test, found, depth + 1) for r in results)


def is_clamp(script: Script, call: ast.Call) -> bool:
    """Whether ``call`` puts a bound to a tensor's values."""
    name = script.name(call)
    return name in _CLAMPS or (not name and f"torch.{method(call)}" in _CLAMPS)


def clamped(script: Script, call: ast.Call) -> ast.expr:
    """The tensor that a clamp is applied to."""
    return call.args[0] if script.name(call) and call.args else receiver(call)


def lower_bound(script: Script, call: ast.Call) -> ast.expr | None:
    """The least value that a clamp leaves."""
    return argument(call, 1 if script.name(call) else 0, "min")


def _returns(script: Script, call: ast.Call) -> list[ast.expr]:
    """What the forward of a module of the file returns, for a call of the module."""
    classes = {script.names.local_class(c) for c in made_by(script, call.func)}
    owner = classes.pop() if len(classes) == 1 else None
    forward = method_named(owner, "forward") if owner is not None else None
    if forward is None:
        return []
    found = [n for n in script.tree.within(forward) if isinstance(n, ast.Return)]
    return [r.value for r in found if r.value is not None]


def is_half(script: Script, node: ast.expr, depth: int = 0) -> bool:
    """Whether ``node`` is certainly fp16: a product of matrices in fp16, or a cast."""
    if depth > _DEPTH:
        return False
    if isinstance(node, ast.Name):
        return _bound_half(script, node, depth)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        both = (is_half(script, side, depth + 1) for side in (node.left, node.right))
        return _under_fp16(script, node) or all(both)
    if isinstance(node, ast.BinOp):
        sides = [s for s in (node.left, node.right) if not _is_scalar(script, s)]
        return bool(sides) and all(is_half(script, s, depth + 1) for s in sides)
    if not isinstance(node, ast.Call):
        return False
    cast = own_cast(script, node)
    if cast is not None:
        return cast == FLOAT16
    if method(node) in _SAME_VALUES and not script.name(node):
        return is_half(script, receiver(node), depth + 1)
    if _autocast(script, node) is None:
        if kept_half(script, node.func):
            return True
        products = script.name(node) in _MATMULS or method(node) in _MATMUL_METHODS
        sides = [*node.args, *([] if script.name(node) else [receiver(node)])] if products else []
        if sides and all(is_half(script, s, depth + 1) for s in sides):
            return True
    return _multiplies(script, node) and _under_fp16(script, node)


def _autocast(script: Script, node: ast.AST) -> Autocast | None:
    """The autocast around ``node`` that may be on."""
    cast = in_force(script, node)
    return None if cast is None or cast.enabled is False else cast


def _bound_half(script: Script, node: ast.Name, depth: int) -> bool:
    """The last binding before ``node`` in its own function; it must certainly be the one read."""
    if all(isinstance(b, Param) for b in script.names.bound(node)):
        given = script.names.known(node)
        return bool(given) and all(is_half(script, g, depth + 1) for g in given)
    bound = [b for b in script.names.bound(node) if isinstance(b, ast.expr)]
    if len(bound) != len(script.names.bound(node)):
        return False
    here = script.place(node)
    before = [b for b in bound if script.place(b).function is here.function]
    before = sorted(
        (b for b in before if script.place(b).at < here.at), key=lambda b: script.place(b).at
    )
    before = [b for b in before if node not in set(ast.walk(b))]
    if not before or not script.place(before[-1]).sides() <= here.sides():
        return False
    return is_half(script, before[-1], depth + 1)


def _is_scalar(script: Script, node: ast.expr) -> bool:
    """A Python number: it leaves the format of the tensor beside it alone."""
    if script.number(node) is not None:
        return True
    if isinstance(node, ast.BinOp):
        return _is_scalar(script, node.left) and _is_scalar(script, node.right)
    if isinstance(node, ast.Call):
        sized = method(node) in ("size", "item") and not script.name(node)
        return sized or script.name(node) in ("math.sqrt", "math.exp")
    shape = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute)
    return shape and node.value.attr == "shape"  # type: ignore[attr-defined]


def _multiplies(script: Script, call: ast.Call) -> bool:
    """A product of matrices, which autocast runs in its 16-bit format."""
    if script.name(call) in _MATMULS or method(call) in _MATMUL_METHODS:
        return True
    made = made_by(script, call.func)
    return bool(made) and all(script.name(v) in _MATMUL_LAYERS for v in made)


def _under_fp16(script: Script, node: ast.AST) -> bool:
    cast = in_force(script, node)
    return cast is not None and cast.dtype == FLOAT16 and cast.enabled is True
