"""Changes of lines of the script, made in its text before it runs.

Two forms are read: ``# train.py:14`` with the line before and after, and a unified diff.

Must not know why a line is changed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from fp16doctor.apply.part import Order, Part

_BLOCK = re.compile(
    r"^# (?P<file>.+):(?P<line>\d+)\n- (?P<old>.*)\n(?P<new>(?:\+.*(?:\n|\Z))+)", re.MULTILINE
)
_ABOVE = re.compile(r"\A# above .*\n(?:\+.*\n)+")
_COMMENT = re.compile(r"^# [^\n]*$", re.MULTILINE)
_HUNK = re.compile(r"@@ -(?P<first>\d+)(?:,(?P<count>\d+))? \+\d+(?:,\d+)? @@.*")


@dataclass(frozen=True, slots=True)
class LineEdit:
    """Lines ``first`` … of a file become others; what stood there is compared without indent."""

    file: str
    first: int  # 1-based
    old: tuple[str, ...]
    new: tuple[str, ...]
    indented: bool  # the new lines have the file's own indent


def edits_in(change: str) -> tuple[LineEdit, ...]:
    """Return the edits that a remedy's change consists of; none where it is anything else too."""
    text = change.strip("\n")
    if text.startswith("--- "):
        return tuple(_of_diff(text))
    blocks = list(_BLOCK.finditer(text))
    rest = _COMMENT.sub("", _BLOCK.sub("", _ABOVE.sub("", text)))
    if rest.strip():
        return ()
    return tuple(
        LineEdit(
            b["file"],
            int(b["line"]),
            (b["old"],),
            tuple(line.removeprefix("+").removeprefix(" ") for line in b["new"].splitlines()),
            indented=False,
        )
        for b in blocks
    )


def _of_diff(text: str) -> Iterator[LineEdit]:
    """Yield the hunks of a unified diff of one file."""
    head, *rest = text.splitlines()
    file, hunk = head.removeprefix("--- ").removeprefix("a/").rstrip("\t"), None
    lines: list[str] = []
    for line in [*rest[1:], "@@ -0 +0 @@"]:
        found = _HUNK.match(line)
        if found is None:
            lines.append(line)
            continue
        if hunk is not None:
            yield _hunk(file, hunk, lines)
        hunk, lines = found, []


def _hunk(file: str, hunk: re.Match[str], lines: list[str]) -> LineEdit:
    told = [x for x in lines if not x.startswith("\\")]
    old, new = (tuple(x[1:] for x in told if x[:1] in (" ", sign)) for sign in "-+")
    first = int(hunk["first"]) + (hunk["count"] == "0")
    return LineEdit(file, first, old, new, indented=True)


def line_edit(order: Order) -> Part | None:
    """Return the script's text with the remedy's lines changed.

    None where the remedy is no change of lines alone, or where the script's own text does not hold
    them: they may stand in a module that the script imports.
    """
    edits = edits_in(order.remedy.change)
    if not edits or order.text is None or _ABOVE.match(order.remedy.change):
        return None
    if any(PurePath(e.file).name != PurePath(order.run.script).name for e in edits):
        return None
    edited = patched_text(order.text, edits)
    return None if edited is None else Part(tree=ast.parse(edited))


def patched_text(text: str | bytes, edits: tuple[LineEdit, ...]) -> str | None:
    """Return the text with all edits; None where it differs from what they were made for."""
    source = text.decode("utf-8") if isinstance(text, bytes) else text
    lines = source.splitlines(keepends=True)
    for edit in sorted(edits, key=lambda e: -e.first):
        start, end = edit.first - 1, edit.first - 1 + len(edit.old)
        there = [line.strip() for line in lines[start:end]]
        if there != [line.strip() for line in edit.old]:
            return None
        lines[start:end] = _renewed(lines[start:end], edit)
    return "".join(lines)


def _renewed(lines: list[str], edit: LineEdit) -> list[str]:
    """The new lines, with the indent and the line ends of those that stood there."""
    first = lines[0] if lines else "\n"
    indent = "" if edit.indented else first[: len(first) - len(first.lstrip())]
    last = lines[-1] if lines else "\n"
    ending = first[len(first.rstrip("\r\n")) :] or "\n"
    out = [f"{indent}{line.rstrip()}{ending}" for line in edit.new]
    if out and last.rstrip("\r\n") == last:  # the file's last line has no end
        out[-1] = out[-1].rstrip("\r\n")
    return out
