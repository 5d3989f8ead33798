"""A line of the script with one expression in place of another, as a diff to paste.

Must not know why a line is changed.
"""

from __future__ import annotations

import ast

import torch

from fp16doctor.schema.location import SourceLine

_NAMESPACES = ("torch", "F", "nn", "functional", "special")  # not a tensor in front of the call
_BUILTINS = ("abs", "float", "int", "len", "max", "min", "pow", "range", "sum")
# What a line only defines, or leaves in the middle: it computes outside the line's block.
LATER = (ast.Lambda, ast.Yield, ast.YieldFrom, ast.Await, ast.FunctionDef, ast.AsyncFunctionDef,
         ast.ClassDef)  # fmt: skip
EDITED = "\n+ "  # what a diff has and a comment has not
_BLOCK = " pass"  # a line that opens a block is none without a body


def with_number(text: str, old: float, new: str) -> str | None:
    """Return a line with ``new`` in place of the only number that equals ``old``.

    None where the line is only part of a statement, or holds the number not once.
    """
    places = [n for n in nodes(text) if _value(n) == old]
    outer = [n for n in places if not any(_within(n, other) for other in places)]
    return spliced(text, outer[0], new) if len(outer) == 1 else None


def receiver(text: str, method: str) -> str | None:
    """Return what the only call of ``method`` on a line is made on: ``x`` of ``x.clamp(…)``."""
    found = [
        n.func.value
        for n in nodes(text)
        if isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr.rstrip("_") == method.rstrip("_")
    ]
    return ast.unparse(found[0]) if len(found) == 1 else None


def within_block(text: str, header: str, back: str = "") -> str | None:
    """Return a line inside a ``with`` block that is meant for what the line computes itself.

    ``back`` is a function of the pasted code that the line's value goes through, "" for none: as
    in ``to(torch.float16, …)`` up to the comma. None where it is no statement of its own, or calls
    modules and functions of the script.
    """
    if _parsed(text) is None or not all(is_torchs(n) for n in nodes(text)):
        return None
    if any(isinstance(n, LATER) for n in nodes(text)):
        return None
    line = _with_value_through(text, back) if back else text
    return None if line is None else f"{header}\n+     {line}"


def _with_value_through(text: str, back: str) -> str | None:
    """Return a line whose value is ``back(…, value)``; None where it is no assignment or return."""
    tree = _parsed(text)
    statement = tree.body[0] if tree is not None and len(tree.body) == 1 else None
    value = statement.value if isinstance(statement, (ast.Assign, ast.Return)) else None
    if value is None:
        return None
    return spliced(text, value, f"{back}{ast.get_source_segment(text, value)})")


def with_call_in_fp32(text: str, name: str, back: str = "") -> str | None:
    """Return a line whose only call of ``name`` gets its first input in fp32.

    ``back`` is put behind the call, ``.to(torch.float16)`` say. ``torch.exp(x)`` becomes
    ``torch.exp(x.float())``, ``x.exp()`` becomes ``x.float().exp()``. None for a call that writes
    in place: what it wrote into a copy would be lost.
    """
    call = _only_call(text, name)
    if (
        call is None
        or not isinstance(call.func, ast.Attribute)
        or called(call, strip=False) != name
    ):
        return None
    owner = call.func.value
    if _root(owner) in _NAMESPACES:
        place = call.args[0] if call.args else None
    else:
        place = None if isinstance(owner, ast.Name) and owner.id == "self" else owner
    if place is None or isinstance(place, ast.Starred):
        return None
    given = ast.get_source_segment(text, place)
    atom = isinstance(place, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
    new = spliced(text, place, f"{given}.float()" if atom else f"({given}).float()")
    end = (call.end_col_offset or 0) + len(new.encode()) - len(text.encode())
    raw = new.encode()
    return (raw[:end] + back.encode() + raw[end:]).decode()


def with_call_renamed(text: str, name: str, new: str) -> tuple[str, str] | None:
    """Return a line whose only call of ``name`` has the name ``new``, and that call as it is then.

    None where it is no call of torch's or of a tensor's method.
    """
    call = _only_call(text, name)
    if call is None or not isinstance(call.func, ast.Attribute) or call.func.attr != name:
        return None
    owner = ast.get_source_segment(text, call.func.value)
    renamed = spliced(text, call.func, f"{owner}.{new}")
    (there,) = (c for c in nodes(renamed) if isinstance(c, ast.Call) and called(c) == new)
    return renamed, ast.get_source_segment(renamed, there) or ""


def without_call(text: str, name: str) -> str | None:
    """Return a line with what the only call of ``name`` is made on in the call's place."""
    call = _only_call(text, name)
    if call is None or not isinstance(call.func, ast.Attribute):
        return None
    is_function = _root(call.func.value) in _NAMESPACES
    if len(call.args) != is_function or call.keywords:
        return None
    inner = call.args[0] if is_function else call.func.value
    return spliced(text, call, ast.get_source_segment(text, inner) or "")


def _only_call(text: str, name: str) -> ast.Call | None:
    calls = [n for n in nodes(text) if isinstance(n, ast.Call) and called(n) == name]
    return calls[0] if len(calls) == 1 else None


def diff(line: SourceLine, new: str | None) -> str:
    """Return the change of a line as a diff, "" where one of both is not known."""
    if line.text is None or new is None:
        return ""
    return f"# {line.file}:{line.line}\n- {line.text}\n+ {new}"


def is_edit(change: str) -> bool:
    """Tell whether a change is nothing but the script's own lines in a new form."""
    lines = change.splitlines()
    starts = [line[:2] for line in lines]
    told = starts.count("- ")
    return 0 < told == starts.count("# ") and not change.startswith("# above")


def nodes(text: str) -> list[ast.AST]:
    """Return the nodes of a line, the module first; a line that opens a block has an empty one."""
    tree = _parsed(text) or _parsed(text + _BLOCK)
    return [] if tree is None else list(ast.walk(tree))


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except SyntaxError:
        return None


def is_torchs(node: ast.AST) -> bool:
    """Tell whether a node is no call, or one of a function of torch or a method of a tensor."""
    if not isinstance(node, ast.Call):
        return True
    if not isinstance(node.func, ast.Attribute):
        return isinstance(node.func, ast.Name) and node.func.id in _BUILTINS
    owner, name = node.func.value, node.func.attr
    if _root(owner) in _NAMESPACES:
        return name[0].islower() or name[0] == "_"
    return hasattr(torch.Tensor, name) and not (isinstance(owner, ast.Name) and owner.id == "self")


def called(call: ast.Call, *, strip: bool = True) -> str:
    """Return ``mul`` of ``x.mul_(y)``; with its underscore where ``strip`` is False."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return name.rstrip("_") if strip else name


def is_function_of_torch(call: ast.Call) -> bool:
    """Tell whether a call is ``torch.exp(x)``, not ``x.exp()``."""
    return isinstance(call.func, ast.Attribute) and _root(call.func.value) in _NAMESPACES


def _root(node: ast.AST) -> str:
    """``torch`` of ``torch.special.exp2``, "" of anything but a dotted name."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _value(node: ast.AST) -> float | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _value(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        left, right = _value(node.left), _value(node.right)
        if left is None or right is None:
            return None
        return left + right if isinstance(node.op, ast.Add) else left - right
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)  # type: ignore[arg-type]  # by its type
    return None


def _within(node: ast.AST, other: ast.AST) -> bool:
    return node is not other and node in list(ast.walk(other))


def spliced(text: str, node: ast.AST, new: str) -> str:
    """Return the line with ``new`` in place of a node of it; columns of ``ast`` count bytes."""
    raw = text.encode()
    start, end = node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
    return (raw[:start] + new.encode() + raw[end:]).decode()
