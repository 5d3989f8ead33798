"""The shortest edit that computes a line in fp32: ``.float()`` on the tensors that enter it.

Which name is which tensor is read off the recorded ops: ``x.pow(2)`` and the one ``pow`` of the
line have the same operand. What is given no ``.float()`` is promoted by what is.

Must not know why a line is kept in fp32.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from fp16doctor.prescribe.edit import called, is_function_of_torch, is_torchs, nodes, spliced
from fp16doctor.replay.op_lists import takes_lower_precision
from fp16doctor.replay.op_traits import base
from fp16doctor.replay.values import HALF
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

_OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("add", "+"),
    ast.Sub: ("sub", "-"),
    ast.Mult: ("mul", "*"),
    ast.Div: ("div", "/"),
    ast.Pow: ("pow", "**"),
}
# A number in front makes another op: 1 - x is rsub(x, 1), 1 / x is reciprocal(x) times 1.
_REVERSED: dict[type[ast.operator], str] = {ast.Sub: "rsub", ast.Div: "reciprocal"}
_SHAPE = ("shape", "ndim", "device", "dim", "size", "numel", "stride", "grad")  # not the values
_BRANCHES = (ast.IfExp, ast.BoolOp, ast.comprehension)
_SAME = {"square": "pow", "multiply": "mul", "divide": "div", "subtract": "sub"}


def line_in_fp32(text: str, calls: Sequence[OpCall], tape: Tape, back: str = "") -> str | None:
    """Return the line whose recorded ops ``calls`` all run in fp32; None where it is not sure to.

    ``back`` is put behind its value, ``.to(torch.float16)`` say.
    """
    names = entering_names(nodes(text), calls, tape)
    if not names or not all_wide(calls, set().union(*names.values())):
        return None
    line = _statement_in_fp32(text, set(names))
    return line if line is None or not back else cast_back(line, back)


def entering_names(
    found: Sequence[ast.AST], calls: Sequence[OpCall], tape: Tape
) -> dict[str, set[int]]:
    """Return the names of 16-bit tensors that enter a line -> the storages they had.

    ``found``: the nodes of the line; ``calls``: its ops that ran in 16 bits.
    """
    outside = {n for n in outside_of(calls) if not _is_named(tape, n)}
    names: dict[str, set[int]] = {}
    for name, storages in _entering(found, calls, outside) if found else ():
        names.setdefault(name, set()).update(storages)
    return names


def outside_of(calls: Sequence[OpCall]) -> set[int]:
    """Return the 16-bit storages that ops take and do not make themselves."""
    made = {r.storage for c in calls for r in refs_in(c.outputs)} - _written(calls)
    given = (r for c in calls for r in refs_in((c.args, c.kwargs)))
    return {r.storage for r in given if r.dtype in HALF and r.storage not in made}


def _written(calls: Sequence[OpCall]) -> set[int]:
    """Storages that were there before an op writes them in place."""
    return {n for c in calls for n in c.mutates}


def _is_named(tape: Tape, number: int) -> bool:
    """A parameter or buffer: an attribute of its module, no name of the line."""
    leaf = tape.leaves.get(number)
    return leaf is not None and (leaf.name is not None or leaf.is_parameter)


def _entering(
    found: Sequence[ast.AST], calls: Sequence[OpCall], outside: set[int]
) -> Iterator[tuple[str, set[int]]]:
    """Yield each name with the storages it had, where one op of the line says so."""
    branches = any(isinstance(n, _BRANCHES) for n in found)
    for op in dict.fromkeys(base(c.op).strip("_") for c in calls):
        mine = [c for c in calls if base(c.op).strip("_") == op]
        places = [o for n in _evaluated(found[0]) if (o := _operands(n, op))]
        if not places or len(mine) % len(places) or (branches and len(places) > 1):
            continue
        if op in _REVERSED.values() and _may_be_named(found, calls, op, len(mine) // len(places)):
            continue
        for turn, operands in enumerate(places):  # the line runs them in turn, each time it runs
            yield from _named(operands, mine[turn :: len(places)], outside)


def _named(
    operands: list[ast.expr], calls: Sequence[OpCall], outside: set[int]
) -> Iterator[tuple[str, set[int]]]:
    for position, node in enumerate(operands):
        name = _name(node)
        refs = [c.args[position] if position < len(c.args) else None for c in calls]
        storages = {r.storage for r in refs if isinstance(r, TensorRef)}
        if name and all(isinstance(r, TensorRef) for r in refs) and storages <= outside:
            yield name, storages


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below one in the order in which Python computes them."""
    for child in ast.iter_child_nodes(node):
        yield from _evaluated(child)
    yield node


def _operands(node: ast.AST, op: str) -> list[ast.expr]:
    """What an expression that may be the op ``op`` is computed from, in the op's own order."""
    if isinstance(node, ast.BinOp) and type(node.op) in _REVERSED and _is_number(node.left):
        return [node.right, node.left] if _REVERSED[type(node.op)] == op else []
    if isinstance(node, ast.BinOp) and _OPERATORS.get(type(node.op), ("",))[0] == op:
        return [node.left, node.right]
    if isinstance(node, ast.AugAssign) and _OPERATORS.get(type(node.op), ("",))[0] == op:
        return [node.target, node.value]
    if not isinstance(node, ast.Call) or _op_of(node) != op or not is_torchs(node):
        return []
    assert isinstance(node.func, ast.Attribute)
    return node.args if is_function_of_torch(node) else [node.func.value, *node.args]


def _may_be_named(found: Sequence[ast.AST], calls: Sequence[OpCall], op: str, runs: int) -> bool:
    """Tell whether the number of ``a - x`` may stand in a name, so that it is an op ``op`` too."""
    kind = next(k for k, name in _REVERSED.items() if name == op)
    same = [n for n in found if isinstance(n, ast.BinOp) and type(n.op) is kind]
    others = sum(not _is_number(n.left) for n in same)
    return others * runs != sum(base(c.op) == _OPERATORS[kind][0] for c in calls)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _op_of(call: ast.Call) -> str:
    return _SAME.get(called(call), called(call))


def _name(node: ast.expr) -> str:
    """``x`` of ``x``, ``x[..., 0]`` and ``x.mT``; ``p.grad`` of ``p.grad``."""
    while isinstance(node, ast.Subscript) or is_turned(node):
        node = node.value  # type: ignore[attr-defined]  # both have one
    owner = node.value if isinstance(node, ast.Attribute) else node
    return ast.unparse(node) if isinstance(owner, ast.Name) else ""


def is_turned(node: ast.expr) -> bool:
    """Tell whether an expression is ``x.T`` or another view of that kind."""
    return isinstance(node, ast.Attribute) and node.attr in ("T", "mT", "H", "mH")


def all_wide(calls: Sequence[OpCall], wide: set[int], *, products: bool = False) -> bool:
    """Tell whether each op gets an fp32 tensor that decides its format, none casts it back.

    What writes in place keeps the format of what it writes into. ``products``: no autocast casts
    what enters a product, all of which has to be fp32.
    """
    wide = set(wide)
    for call in calls:
        given = [r for r in refs_in((call.args, call.kwargs)) if r.dtype in HALF]
        shaped = [r for r in given if r.shape] or given  # a number of a tensor decides alone only
        decides = any(r.storage in wide for r in shaped)
        keeps = any(r.storage in call.mutates and r.storage not in wide for r in given)
        if takes_lower_precision(call.op):
            decides = products and all(r.storage in wide for r in given)
        if not decides or keeps:
            return False
        wide |= {r.storage for r in refs_in(call.outputs)}
    return True


def _statement_in_fp32(text: str, names: set[str]) -> str | None:
    """Return the line with ``.float()`` on the names; what writes in place makes a new tensor."""
    tree = nodes(text)
    for node in tree:
        if isinstance(node, ast.AugAssign) and _name(node.target) in names:
            return _assigned(text, node, names)
        if isinstance(node, ast.Call) and called(node, strip=False).endswith("_"):
            return _without_writing(text, tree, node, names)
    return in_fp32(text, names)


def _assigned(text: str, node: ast.AugAssign, names: set[str]) -> str | None:
    """``x *= y`` as ``x = x.float() * y``; None for a part of a tensor."""
    if not isinstance(node.target, ast.Name) or type(node.op) not in _OPERATORS:
        return None
    target, sign = node.target.id, _OPERATORS[type(node.op)][1]
    value = ast.get_source_segment(text, node.value) or ""
    value = in_fp32(value, names) or value
    value = value if isinstance(node.value, (ast.Name, ast.Call, ast.Constant)) else f"({value})"
    return spliced(text, node, f"{target} = {target}.float() {sign} {value}")


def _without_writing(
    text: str, tree: Sequence[ast.AST], call: ast.Call, names: set[str]
) -> str | None:
    """``x.mul_(y)`` as ``x = x.float().mul(y)``, where it is the whole statement."""
    whole = tree[1:2]
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    is_whole = whole and isinstance(whole[0], ast.Expr) and whole[0].value is call
    if not is_whole or not isinstance(owner, ast.Name) or owner.id not in names:
        return None
    assert isinstance(call.func, ast.Attribute)
    name, given = call.func.attr.rstrip("_"), text.encode()[call.func.end_col_offset :].decode()
    return f"{owner.id} = {owner.id}.float().{name}{in_fp32(given, names) or given}"


def in_fp32(text: str, names: set[str]) -> str | None:
    """Return the text with ``.float()`` on each of the names that torch's own calls read."""
    tree = nodes(text)
    hidden = {id(n) for call in tree if not is_torchs(call) for n in _arguments(call)}
    hidden |= {id(n) for s in tree if isinstance(s, ast.Subscript) for n in ast.walk(s.slice)}
    hidden |= {id(a.value) for a in tree if isinstance(a, ast.Attribute) and a.attr in _SHAPE}
    hidden |= {
        id(a.value) for a in tree if isinstance(a, ast.Attribute) and ast.unparse(a) in names
    }
    places = [
        n
        for n in tree
        if isinstance(n, (ast.Name, ast.Attribute))
        and ast.unparse(n) in names
        and isinstance(n.ctx, ast.Load)
        and id(n) not in hidden
    ]
    for node in sorted(places, key=lambda n: -n.col_offset):
        text = spliced(text, node, f"{ast.unparse(node)}.float()")
    return text if places else None


def _arguments(call: ast.AST) -> Iterator[ast.AST]:
    assert isinstance(call, ast.Call)
    for argument in (*call.args, *(k.value for k in call.keywords)):
        yield from ast.walk(argument)


def cast_back(text: str, back: str) -> str | None:
    """Return the statement with ``back`` behind its value; None where it has none of its own."""
    statement = nodes(text)[1:2]
    if not statement or not isinstance(statement[0], (ast.Assign, ast.Return)):
        return None
    value = statement[0].value
    if value is None or not all(map(is_torchs, ast.walk(value))):
        return None
    return spliced(text, value, f"({ast.get_source_segment(text, value)}){back}")
