"""The right form as a unified diff of the script's own lines.

Must not know what is being put right.
"""

from __future__ import annotations

import ast
import difflib
import os
from collections.abc import Iterable
from dataclasses import dataclass

_CONTEXT = 1  # unchanged lines shown around a change
_NO_NEWLINE = "\n\\ No newline at end of file\n"


@dataclass(frozen=True)
class Edit:
    """Lines ``first`` … ``last`` (1-based, inclusive) become ``lines``; last < first inserts."""

    first: int
    last: int
    lines: tuple[str, ...]


def indent_of(lines: list[str], number: int) -> str:
    """The white space that line ``number`` starts with."""
    text = lines[number - 1]
    return text[: len(text) - len(text.lstrip())]


def insert_before(lines: list[str], statement: ast.stmt, *texts: str) -> Edit:
    """New lines in front of a statement, at its indent."""
    return Edit(statement.lineno, statement.lineno - 1, _indented(lines, statement, texts))


def insert_after(lines: list[str], statement: ast.stmt, *texts: str) -> Edit:
    """New lines behind a statement, at its indent."""
    end = statement.end_lineno or statement.lineno
    return Edit(end + 1, end, _indented(lines, statement, texts))


def _indented(lines: list[str], statement: ast.stmt, texts: Iterable[str]) -> tuple[str, ...]:
    indent = indent_of(lines, statement.lineno)
    return tuple(indent + text for text in texts)


def remove(lines: list[str], statement: ast.stmt) -> Edit:
    """Take a statement out, whole lines; ``pass`` stays where a block would be left empty."""
    return Edit(statement.lineno, statement.end_lineno or statement.lineno, ())


def replace_statement(lines: list[str], statement: ast.stmt, *texts: str) -> Edit:
    """Other lines in place of a statement, at its indent."""
    end = statement.end_lineno or statement.lineno
    return Edit(statement.lineno, end, _indented(lines, statement, texts))


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

    Empty where two of the edits overlap.

    Args:
        path: the file's name, the one that the diff carries.
        lines: the text between its line ends; the last is empty where the text ends in one.
        edits: what becomes of the lines.
    """
    ordered = sorted(set(edits), key=lambda e: (e.first, e.last))
    changed, at = [], 1
    for edit in ordered:
        if edit.first < at:
            return ""
        changed += [*lines[at - 1 : edit.first - 1], *edit.lines]
        at = max(edit.last, edit.first - 1) + 1
    changed += lines[at - 1 :]
    names = (_header("a/", path), _header("b/", path))
    found = difflib.unified_diff(_ended(lines), _ended(changed), *names, n=_CONTEXT)
    return "".join(line if line.endswith("\n") else line + _NO_NEWLINE for line in found)


def _ended(lines: list[str]) -> list[str]:
    """The lines with their ends, as a diff counts them."""
    *ended, last = "\n".join(lines).split("\n")
    return [line + "\n" for line in ended] + ([last] if last else [])


def _header(side: str, path: str) -> str:
    """The name with the prefix that git strips; a tab ends one that holds a space."""
    name = path if os.path.isabs(path) else side + path.removeprefix("./")
    return f"{name}\t" if " " in name else name
