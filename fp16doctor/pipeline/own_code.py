"""Says where code goes: as a diff in front of the line that makes the optimizer, else in words.

Must not know what the code does.
"""

from __future__ import annotations

import ast

from fp16doctor.diagnose.script_reading.patch import Edit, diff, indent_of
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.training_start import binds_anew, training_start
from fp16doctor.pipeline.own_model import in_code

_PLACE = "# once the model is made, before its optimizer"


def placed(code: str, script: Script | None, model: str) -> str:
    """Return code for ``model`` as a diff, or below a comment that says where it goes.

    What is no Python (a diff, an edit of a line), and comments alone, stay as they are.
    ``model``: its name, "" where it is not known. ``script``: None where there is no text.
    """
    if not _is_code(code) or code.startswith(_PLACE):
        return code
    start = training_start(script, model) if script is not None else None
    if script is None or start is None or not _begins_line(script, start.statement):
        return f"{_PLACE}:\n{code}"
    if binds_anew(script, code):
        return f"{_PLACE} ({script.path}:{start.statement.lineno}):\n{code}"
    number = start.statement.lineno
    indent = indent_of(script.lines, number)
    own = in_code(code, start.model).strip("\n").split("\n")
    edit = Edit(number, number - 1, tuple(f"{indent}{line}".rstrip() for line in own if line))
    return diff(script.path, script.lines, [edit]) or f"{_PLACE}:\n{code}"


def _begins_line(script: Script, statement: ast.stmt) -> bool:
    return not script.lines[statement.lineno - 1].encode()[: statement.col_offset].strip()


def _is_code(text: str) -> bool:
    """Tell whether a text is Python, and more than comments."""
    try:
        return bool(ast.parse(text).body)
    except SyntaxError:
        return False
