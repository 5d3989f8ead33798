"""A line with matrix products, computed in fp32: ``.float()`` on every operand, autocast off.

What a product takes has one dtype, so that each operand needs its own cast; an operand is a tensor
in any case, so that the cast is always possible. Outside its products a line is read as in
``line_float``.

Must not know why a line is kept in fp32.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from fp16doctor.prescribe.edit import LATER, called, is_function_of_torch, is_torchs, nodes, spliced
from fp16doctor.prescribe.line_float import (
    all_wide,
    cast_back,
    entering_names,
    in_fp32,
    is_turned,
    outside_of,
)
from fp16doctor.replay.op_lists import takes_lower_precision
from fp16doctor.replay.op_traits import base
from fp16doctor.replay.values import HALF
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

# Functions -> how many of their leading arguments are operands; "einsum" has its own order.
_PRODUCTS = {"matmul": 2, "mm": 2, "bmm": 2, "mv": 2, "dot": 2, "vdot": 2, "linear": 3, "addmm": 3,
             "baddbmm": 3, "addbmm": 3, "addmv": 3, "conv1d": 3, "conv2d": 3, "conv3d": 3,
             "scaled_dot_product_attention": 3}  # fmt: skip
_WITH_BIAS = ("linear", "conv1d", "conv2d", "conv3d")
_ALIKE = frozenset(
    ("transpose", "permute", "view", "reshape", "unsqueeze", "squeeze", "expand", "flatten", "t",
     "contiguous", "detach", "chunk", "swapaxes", "movedim", "expand_as", "view_as")
)  # fmt: skip
_MOVES = frozenset(("clone", "_to_copy", "contiguous"))
_FACTS = ("shape", "ndim", "device", "dtype")
_UPCASTS = ("float", "to", "double", "type")


def product_in_fp32(
    text: str, calls: Sequence[OpCall], every: Sequence[OpCall], tape: Tape, back: str = ""
) -> str | None:
    """Return the line, for a block without autocast; None where it is not sure to be in fp32.

    Args:
        text: one statement.
        calls: the ops of the line that ran in 16 bits, casts left out.
        every: all of its ops in front of backward.
        tape: the step.
        back: put behind the line's value, ``.to(torch.float16)`` say.
    """
    found = nodes(text)
    if not found or not _is_plain(text, found):
        return None
    places = [n for n in found if _is_product(n)]
    products = [c for c in calls if takes_lower_precision(c.op)]
    if not places or not products or len(products) % len(places):
        return None
    operands = [o for place in places for o in _operands(place, products)]
    if not operands or not all(map(_is_computable, operands)):
        return None
    names = entering_names(found, calls, tape)
    wide = set().union(*names.values()) | _fed(products, every, outside_of(calls))
    if not all_wide(calls, wide, products=True) or not _keeps_upcasts(found, every, calls, wide):
        return None
    roots = [r for r in map(_root, operands) if r is not None]
    line = _edited(text, roots, set(names) | {r.id for r in roots if isinstance(r, ast.Name)})
    return line if line is None or not back else cast_back(line, back)


def _is_plain(text: str, found: Sequence[ast.AST]) -> bool:
    """Tell whether a text is one statement that computes all of it here and now."""
    tree = found[0]
    body = tree.body if isinstance(tree, ast.Module) else []
    simple = len(body) == 1 and isinstance(body[0], (ast.Assign, ast.Return, ast.Expr))
    return simple and all(map(is_torchs, found)) and not any(isinstance(n, LATER) for n in found)


def _is_product(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    return isinstance(node, ast.Call) and called(node, strip=False) in (*_PRODUCTS, "einsum")


def _operands(place: ast.AST, products: Sequence[OpCall]) -> list[ast.expr]:
    """What a product is made of; [] where it is not certain what its arguments are."""
    if isinstance(place, ast.BinOp):
        return [place.left, place.right]
    assert isinstance(place, ast.Call)
    name = called(place, strip=False)
    given = place.args
    if not is_function_of_torch(place):
        assert isinstance(place.func, ast.Attribute)
        given = [place.func.value, *given]
    if name == "einsum":
        return given[1:]
    tensors = given[: _PRODUCTS[name]]
    masked = name.startswith("scaled") and (len(given) > 3 or _names(place, "attn_mask"))
    if masked or _names(place, "bias", "weight", "query", "key", "value", "other", "mat2"):
        return []
    if name in _WITH_BIAS and len(tensors) == 3 and not all(map(_takes_bias, products)):
        return tensors[:2] if _is_none(tensors[2]) else []
    return tensors


def _names(call: ast.Call, *keywords: str) -> bool:
    return any(k.arg in keywords for k in call.keywords)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _takes_bias(call: OpCall) -> bool:
    if base(call.op) in ("addmm", "baddbmm", "addmv"):
        return True
    return len(call.args) > 2 and isinstance(call.args[2], TensorRef)


def _is_computable(operand: ast.expr) -> bool:
    """An operand is a name with views of it, or is computed on the line."""
    return not isinstance(operand, (ast.Starred, ast.Constant, ast.IfExp, ast.List, ast.Tuple))


def _root(node: ast.expr) -> ast.expr | None:
    """``q`` of ``q.transpose(-2, -1)[0]``; None of what is computed."""
    while True:
        if isinstance(node, ast.Subscript) or is_turned(node):
            node = node.value  # type: ignore[attr-defined]
        elif isinstance(node, ast.Call) and called(node, strip=False) in _ALIKE:
            assert isinstance(node.func, ast.Attribute)
            node = node.args[0] if is_function_of_torch(node) else node.func.value
        else:
            return node if isinstance(node, (ast.Name, ast.Attribute)) else None


def _fed(products: Sequence[OpCall], every: Sequence[OpCall], outside: set[int]) -> set[int]:
    """Storages from outside that the products take, also through a copy made for them.

    A copy that autocast makes of an fp32 tensor is one such: without autocast there is none.
    """
    copied = {
        out.storage: refs_in(c.args)[0].storage
        for c in every
        if base(c.op) in _MOVES and refs_in(c.args)
        for out in refs_in(c.outputs)
    }
    found: set[int] = set()
    waiting = [r.storage for c in products for r in refs_in((c.args, c.kwargs)) if r.dtype in HALF]
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting += [copied[number]] if number in copied else []
    return {n for n in found if n in outside or n in copied}


def _keeps_upcasts(
    found: Sequence[ast.AST], every: Sequence[OpCall], calls: Sequence[OpCall], wide: set[int]
) -> bool:
    """Tell whether no op runs in fp32 by autocast alone, which the block switches off."""
    wide = wide | {r.storage for c in calls for r in refs_in(c.outputs)}
    own = sum(isinstance(n, ast.Call) and called(n) in _UPCASTS for n in found)
    up = [c for c in every if base(c.op) == "_to_copy" and _widens(c)]
    return sum(refs_in(c.args)[0].storage not in wide for c in up) <= own


def _widens(call: OpCall) -> bool:
    given, made = refs_in(call.args), refs_in(call.outputs)
    return bool(given and made) and given[0].dtype in HALF and made[0].dtype == "float32"


def _edited(text: str, roots: Sequence[ast.expr], names: set[str]) -> str | None:
    """Return the line with ``.float()`` on names, and on the attributes that are operands."""
    spelled = list(dict.fromkeys(ast.unparse(r) for r in roots if isinstance(r, ast.Attribute)))
    line = in_fp32(text, names) if names else text
    for attribute in spelled if line is not None else ():
        assert line is not None
        line = _with_attribute(line, attribute)
    return line


def _with_attribute(text: str, attribute: str) -> str:
    places = [*_attributes(nodes(text), attribute)]
    for node in sorted(places, key=lambda n: -n.col_offset):
        text = spliced(text, node, f"{attribute}.float()")
    return text


def _attributes(found: Sequence[ast.AST], attribute: str) -> Iterator[ast.Attribute]:
    """Places that read ``self.weight`` as a tensor: not its shape, nor its dtype."""
    hidden = {id(n.value) for n in found if isinstance(n, ast.Attribute) and n.attr in _FACTS}
    for node in found:
        is_tensor = isinstance(node, ast.Attribute) and id(node) not in hidden
        if isinstance(node, ast.Attribute) and is_tensor and ast.unparse(node) == attribute:
            yield node
