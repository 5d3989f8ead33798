"""The right form as a unified diff of the script's own lines.

Must not know what is being put right.
"""

from __future__ import annotations

import ast
import difflib
import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace

_CONTEXT = 1  # unchanged lines shown around a change
_NO_NEWLINE = "\n\\ No newline at end of file\n"


@dataclass(frozen=True)
class Edit:
    """Lines ``first`` … ``last`` (1-based, inclusive) become ``lines``; last < first inserts."""

    first: int
    last: int
    lines: tuple[str, ...]
    empties: str | None = None  # indent of what is taken out: where a block ends empty, pass stays


_NONE = Edit(0, 0, ())  # the change cannot be told in lines; so cannot any diff that it is part of


def indent_of(lines: list[str], number: int) -> str:
    """The white space that line ``number`` starts with."""
    text = lines[number - 1]
    return text[: len(text) - len(text.lstrip())]


def insert_before(lines: list[str], statement: ast.stmt, *texts: str) -> Edit:
    """New lines in front of a statement, at its indent."""
    if not _begins_line(lines, statement):
        return _NONE
    return Edit(statement.lineno, statement.lineno - 1, _indented(lines, statement, texts))


def insert_after(lines: list[str], statement: ast.stmt, *texts: str) -> Edit:
    """New lines behind a statement, at its indent."""
    if not _has_own_lines(lines, statement):
        return _NONE
    end = statement.end_lineno or statement.lineno
    return Edit(end + 1, end, _indented(lines, statement, texts))


def _begins_line(lines: list[str], statement: ast.stmt) -> bool:
    """Whether nothing stands in front of it; an ``elif`` goes on with what is above."""
    line = lines[statement.lineno - 1].encode()
    head, rest = line[: statement.col_offset], line[statement.col_offset :]
    return not head.strip() and not rest.startswith(b"elif")


def _has_own_lines(lines: list[str], statement: ast.stmt) -> bool:
    """Whether no other statement shares a line with it, and none continues it."""
    end = lines[(statement.end_lineno or statement.lineno) - 1].encode()
    tail = end[statement.end_col_offset or 0 :].strip()
    return _begins_line(lines, statement) and (not tail or tail.startswith(b"#"))


def _indented(lines: list[str], statement: ast.stmt, texts: Iterable[str]) -> tuple[str, ...]:
    indent = indent_of(lines, statement.lineno)
    return tuple(indent + text for text in texts)


def remove(lines: list[str], statement: ast.stmt) -> Edit:
    """Take a statement out, whole lines; ``pass`` stays where a block would be left empty."""
    if not _has_own_lines(lines, statement):
        return _NONE
    indent = indent_of(lines, statement.lineno)
    return Edit(statement.lineno, statement.end_lineno or statement.lineno, (), indent)


def replace_statement(lines: list[str], statement: ast.stmt, *texts: str) -> Edit:
    """Other lines in place of a statement, at its indent."""
    if not _has_own_lines(lines, statement):
        return _NONE
    end = statement.end_lineno or statement.lineno
    return Edit(statement.lineno, end, _indented(lines, statement, texts))


def remove_call(lines: list[str], statement: ast.stmt, call: ast.expr) -> Edit:
    """Take out a call that is a statement; a call whose value is used cannot go."""
    return remove(lines, statement) if is_alone(statement, call) else _NONE


def replace_call(
    lines: list[str], statement: ast.stmt, call: ast.expr, text: str, *after: str
) -> list[Edit]:
    """Other text in place of a call, and new lines behind its statement."""
    if is_alone(statement, call):
        return [replace_statement(lines, statement, text, *after)]
    if hasattr(statement, "body"):  # of a condition or a loop
        return [_NONE]
    behind = [insert_after(lines, statement, *after)] if after else []
    return [*swap(lines, (call, text)), *behind]


def is_alone(statement: ast.stmt, call: ast.expr) -> bool:
    """Whether the statement is the call and nothing else."""
    return isinstance(statement, ast.Expr) and statement.value is call


def swap(lines: list[str], *pairs: tuple[ast.expr, str]) -> list[Edit]:
    """Other text in place of expressions; those on one line become one edit."""
    spans: dict[tuple[int, int], list[tuple[ast.expr, str]]] = {}
    for node, text in pairs:
        spans.setdefault((node.lineno, node.end_lineno or node.lineno), []).append((node, text))
    return [_swapped(lines, span, its) for span, its in spans.items()]


def _swapped(lines: list[str], span: tuple[int, int], pairs: list[tuple[ast.expr, str]]) -> Edit:
    first, last = span
    block = [line.encode() for line in lines[first - 1 : last]]
    # The offsets of ast are bytes; from the right, so that those on the left stay true.
    for node, text in sorted(pairs, key=lambda pair: -pair[0].col_offset):
        head, tail = block[0][: node.col_offset], block[-1][node.end_col_offset or 0 :]
        block = [head + text.encode() + tail]
    return Edit(first, last, tuple(b.decode() for b in block))


def with_argument(lines: list[str], call: ast.Call, text: str) -> Edit:
    """The call with one more argument, behind the others."""
    number, end = call.end_lineno or call.lineno, (call.end_col_offset or 1) - 1
    line = lines[number - 1].encode()
    head = line[:end].decode()
    before = head.rstrip() or (lines[number - 2].rstrip() if number > 1 else "")
    comma = "" if before.endswith((",", "(")) or not (call.args or call.keywords) else ", "
    space = " " if head.endswith(",") else ""
    return Edit(number, number, (head + comma + space + text + line[end:].decode(),))


def without_keyword(lines: list[str], call: ast.Call, keyword: ast.keyword) -> Edit | None:
    """The call without one of its keyword arguments; None where it spans lines."""
    others = [*call.args, *[k.value for k in call.keywords if k is not keyword]]
    before = [o for o in others if (o.lineno, o.col_offset) < (keyword.lineno, keyword.col_offset)]
    last = max(before, key=lambda o: (o.end_lineno or 0, o.end_col_offset or 0), default=None)
    if last is None or last.end_lineno != keyword.lineno or keyword.end_lineno != keyword.lineno:
        return None
    line = lines[keyword.lineno - 1].encode()
    kept = line[: last.end_col_offset] + line[keyword.end_col_offset or 0 :]
    return Edit(keyword.lineno, keyword.lineno, (kept.decode(),))


def diff(path: str, lines: list[str], edits: Iterable[Edit]) -> str:
    """The edits as a unified diff that ``git apply`` and ``patch -p1`` take.

    Empty where two of the edits overlap, or what they leave is no Python.

    Args:
        path: the file's name, the one that the diff carries.
        lines: the text between its line ends; the last is empty where the text ends in one.
        edits: what becomes of the lines.
    """
    changed = edited(lines, edits)
    return "" if changed is None else between(path, lines, changed)


def edited(lines: list[str], edits: Iterable[Edit]) -> list[str] | None:
    """The lines after the edits; None where there is none, two overlap or it is no Python."""
    ordered = sorted(set(edits), key=lambda e: (e.first, e.last))
    if not ordered or _NONE in ordered:
        return None
    filled = [e if e.empties is None else replace(e, lines=(e.empties + "pass",)) for e in ordered]
    return next((c for way in (ordered, filled) if (c := _applied(lines, way))), None)


def between(path: str, lines: list[str], changed: list[str]) -> str:
    """The change from some lines to others as a unified diff."""
    names = (_header("a/", path), _header("b/", path))
    found = difflib.unified_diff(_ended(lines), _ended(changed), *names, n=_CONTEXT)
    return "".join(line if line.endswith("\n") else line + _NO_NEWLINE for line in found)


def _applied(lines: list[str], ordered: list[Edit]) -> list[str] | None:
    """The lines after the edits; None where two overlap, or the result is no Python."""
    changed, at = [], 1
    for edit in ordered:
        if edit.first < at:
            return None
        changed += [*lines[at - 1 : edit.first - 1], *edit.lines]
        at = max(edit.last, edit.first - 1) + 1
    changed += lines[at - 1 :]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parser's, on escapes of the file
            ast.parse("\n".join(changed))
    except (SyntaxError, ValueError, RecursionError):
        return None
    return changed


def _ended(lines: list[str]) -> list[str]:
    """The lines with their ends, as a diff counts them."""
    *ended, last = "\n".join(lines).split("\n")
    return [line + "\n" for line in ended] + ([last] if last else [])


def _header(side: str, path: str) -> str:
    """The name with the prefix that git strips; a tab ends one that holds a space."""
    name = path if os.path.isabs(path) else side + path.removeprefix("./")
    return f"{name}\t" if " " in name else name
