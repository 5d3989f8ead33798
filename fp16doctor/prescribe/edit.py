"""A line of the script with one expression in place of another, as a diff to paste.

Must not know why a line is changed.
"""

from __future__ import annotations

import ast

from fp16doctor.schema.location import SourceLine

_BLOCK = " pass"  # a line that opens a block is none without a body


def with_number(text: str, old: float, new: str) -> str | None:
    """Return a line with ``new`` in place of the only number that equals ``old``.

    None where the line is only part of a statement, or holds the number not once.
    """
    places = [n for n in _nodes(text) if _value(n) == old]
    outer = [n for n in places if not any(_within(n, other) for other in places)]
    return _spliced(text, outer[0], new) if len(outer) == 1 else None


def receiver(text: str, method: str) -> str | None:
    """Return what the only call of ``method`` on a line is made on: ``x`` of ``x.clamp(…)``."""
    found = [
        n.func.value
        for n in _nodes(text)
        if isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr.rstrip("_") == method.rstrip("_")
    ]
    return ast.unparse(found[0]) if len(found) == 1 else None


def diff(line: SourceLine, new: str | None) -> str:
    """Return the change of a line as a diff, "" where one of both is not known."""
    if line.text is None or new is None:
        return ""
    return f"# {line.file}:{line.line}\n- {line.text}\n+ {new}"


def _nodes(text: str) -> list[ast.AST]:
    for source in (text, text + _BLOCK):
        try:
            return list(ast.walk(ast.parse(source)))
        except SyntaxError:
            continue
    return []


def _value(node: ast.AST) -> float | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _value(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)  # type: ignore[arg-type]  # by its type
    return None


def _within(node: ast.AST, other: ast.AST) -> bool:
    return node is not other and node in list(ast.walk(other))


def _spliced(text: str, node: ast.AST, new: str) -> str:
    """Columns of ``ast`` count bytes."""
    raw = text.encode()
    start, end = node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
    return (raw[:start] + new.encode() + raw[end:]).decode()
