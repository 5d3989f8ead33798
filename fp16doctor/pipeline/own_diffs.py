"""Gives edits of lines as a unified diff, which ``patch`` and ``git apply`` take.

Must not know why a line is edited.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace

from fp16doctor.apply.line_edit import LineEdit, edits_in, patched_text
from fp16doctor.diagnose.script_reading.patch import between

_ABOVE = re.compile(r"\A# above [^\n]*\n(?P<code>(?:\+[^\n]*\n)+)")
_WORDS = re.compile(r"^# .+:\d+: .*$", re.MULTILINE)  # what has to be done at a line beside it

Read = Callable[[str], str]  # a file's name as source lines have it -> its text, "" for none


def as_diff(change: str, read: Read) -> str:
    """Return the diff of one file, followed by what else is to be done in words.

    The change as it is where it edits no line, several files, or a file that does not take it.
    """
    edits = edits_in(change)
    files = {e.file for e in edits}
    if change.startswith("--- ") or len(files) != 1:
        return change
    (file,) = files
    text, above = read(file), _ABOVE.match(change)
    edited = patched_text(text, _in_one_block(edits)) if text else None
    if edited is None:
        return change
    first = min(e.first for e in edits)
    if above is not None:
        code = [line.removeprefix("+").removeprefix(" ") for line in above["code"].splitlines()]
        edited = _with_code(edited, code, first)
    if edited is None or not _is_python(edited):
        return change
    told = between(file, _lines(text), _lines(edited)).rstrip("\n")
    return "\n".join((told, *_WORDS.findall(change)))


def _in_one_block(edits: tuple[LineEdit, ...]) -> tuple[LineEdit, ...]:
    """Edits of neighbouring lines that each open the same block: the block is opened once."""
    found: list[LineEdit] = []
    for edit in sorted(edits, key=lambda e: e.first):
        before = found[-1] if found else None
        is_next = before is not None and before.first + len(before.old) == edit.first
        opens = len(edit.new) == 2 and edit.new[0].startswith("with ")
        if before is not None and is_next and opens and before.new[0] == edit.new[0]:
            old, new = before.old + edit.old, before.new + edit.new[1:]
            found[-1] = replace(before, old=old, new=new)
        else:
            found.append(edit)
    return tuple(found)


def _with_code(text: str, code: list[str], number: int) -> str | None:
    """Return a text with code above the outermost statement that a line stands in."""
    lines = text.split("\n")
    try:
        around = [s for s in ast.parse(text).body if s.lineno <= number <= (s.end_lineno or 0)]
    except SyntaxError:
        return None
    if len(around) != 1:
        return None
    decorators = getattr(around[0], "decorator_list", [])
    at = min([around[0].lineno, *(d.lineno for d in decorators)]) - 1
    room = ["", ""] if hasattr(around[0], "name") else []
    return "\n".join([*lines[:at], *code, *room, *lines[at:]])


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def _lines(text: str) -> list[str]:
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
