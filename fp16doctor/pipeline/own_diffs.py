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
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.pipeline.own_code import with_code_of_model

_ABOVE = re.compile(r"\A# above (?P<what>\w+ \w+)[^\n]*\n(?P<code>(?:\+[^\n]*\n)+)")
_OPTIMIZER = "the optimizer"
_WORDS = re.compile(r"^# .+:\d+: .*$", re.MULTILINE)  # what has to be done at a line beside it

Read = Callable[[str], str]  # a file's name as source lines have it -> its text, "" for none


def as_diff(change: str, read: Read, script: Script | None, model: str) -> str:
    """Return the diff of one file.

    The change as it is where it edits no line, several files, or a file that does not take it; and
    where more has to be done, which it says in words: the diff alone would not run.
    ``script`` and ``model``: for code that stands above the optimizer.
    """
    edits = edits_in(change)
    files = {e.file for e in edits}
    if change.startswith("--- ") or len(files) != 1 or _WORDS.search(change):
        return change
    (file,) = files
    text, above = read(file), _ABOVE.match(change)
    edited = patched_text(text, _in_one_block(edits)) if text else None
    if edited is None:
        return change
    if above is not None:
        edited = _with_above(edited, above, edits[0], script, model)
    if edited is None or not _is_python(edited):
        return change
    return between(file, _lines(text), _lines(edited))


def _with_above(
    text: str, above: re.Match[str], edit: LineEdit, script: Script | None, model: str
) -> str | None:
    """Return a text with the code that an edited line needs, None where its place is in doubt."""
    code = [line.removeprefix("+").removeprefix(" ") for line in above["code"].splitlines()]
    if above["what"] != _OPTIMIZER:
        return _with_code(text, code, edit.first)
    if script is None or script.path != edit.file:
        return None
    return with_code_of_model(text, edit.file, "\n".join(code), model)


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
