"""A line of the script without its cast to 16 bits, or with one to fp32 in its place.

Must not know why the cast is left out.
"""

from __future__ import annotations

import ast

from fp16doctor.prescribe.edit import called, is_function_of_torch, nodes, spliced

_CASTS = ("half", "bfloat16", "to", "type", "type_as")


def without_cast(text: str, instead: str = "") -> str | None:
    """Return a line with what its only cast is made on in the cast's place.

    ``y.to(w.dtype)`` becomes ``y``; ``y.float()`` where ``instead`` is ``.float()``. None where the
    line has another cast beside it, or the call may move the tensor as well.
    """
    casts = [n for n in nodes(text) if isinstance(n, ast.Call) and called(n, strip=False) in _CASTS]
    if len(casts) != 1 or not _is_only_cast(casts[0]):
        return None
    assert isinstance(casts[0].func, ast.Attribute)
    value = casts[0].func.value
    inner = ast.get_source_segment(text, value) or ""
    atom = isinstance(value, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
    return spliced(text, casts[0], (inner if atom else f"({inner})") + instead)


def _is_only_cast(call: ast.Call) -> bool:
    """Tell whether a call changes the dtype and no more: ``x.half()``, ``x.to(y.dtype)``."""
    if is_function_of_torch(call) or len(call.args) + len(call.keywords) > 1:
        return False
    takes_none = called(call) in ("half", "bfloat16")
    given = [*call.args, *(k.value for k in call.keywords if k.arg == "dtype")]
    return len(given) == (not takes_none) and not any(map(_may_move, given))


def _may_move(node: ast.expr) -> bool:
    """Tell whether an argument may name a device beside or instead of a dtype."""
    return not (isinstance(node, ast.Attribute) and node.attr not in ("data", "device"))
