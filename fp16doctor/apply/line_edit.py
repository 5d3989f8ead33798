"""A change of one line of the script, made in its text before it runs.

Must not know why the line is changed.
"""

from __future__ import annotations

import ast
import re
from pathlib import PurePath

from fp16doctor.apply.part import Order, Part

# As a remedy prints it: "# train.py:14", then the line before and after.
_CHANGE = re.compile(r"\A# (?P<file>.+):(?P<line>\d+)\n- (?P<old>.*)\n\+ (?P<new>.*)\Z")


def line_edit(order: Order) -> Part | None:
    """Return the script's text with the remedy's line changed.

    None where the remedy is no change of one line, or where the script's own text does not hold
    the line: it may stand in a module that the script imports.
    """
    found = _CHANGE.match(order.remedy.change.strip())
    if found is None or order.text is None:
        return None
    if PurePath(found["file"]).name != PurePath(order.run.script).name:
        return None
    edited = edited_text(order.text, int(found["line"]), found["old"], found["new"])
    return None if edited is None else Part(tree=ast.parse(edited))


def edited_text(text: str | bytes, number: int, old: str, new: str) -> str | None:
    """Return the text with line ``number`` (from 1) changed, indent kept; None if it differs."""
    source = text.decode("utf-8") if isinstance(text, bytes) else text
    lines = source.splitlines(keepends=True)
    if not 1 <= number <= len(lines) or lines[number - 1].strip() != old.strip():
        return None
    line = lines[number - 1]
    indent, ending = line[: len(line) - len(line.lstrip())], line[len(line.rstrip("\r\n")) :]
    lines[number - 1] = f"{indent}{new.strip()}{ending}"
    return "".join(lines)
