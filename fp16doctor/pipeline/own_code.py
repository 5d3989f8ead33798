"""Says where code goes: as a diff in front of the line that makes the optimizer, else in words.

Must not know what the code does.
"""

from __future__ import annotations

import ast

from fp16doctor.diagnose.script_reading.patch import between, indent_of
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
    if script is None:
        return f"{_PLACE}:\n{code}"
    text = with_code_of_model("\n".join(script.lines), script.path, code, model)
    if text is not None:
        return between(script.path, script.lines, text.split("\n"))
    start = training_start(script, model)
    at = "" if start is None else f" ({script.path}:{start.statement.lineno})"
    return f"{_PLACE}{at}:\n{code}"


def with_code_of_model(text: str, file: str, code: str, model: str) -> str | None:
    """Return a text with code for ``model`` above its optimizer, None where that is in doubt.

    What the code defines is read by lines anywhere in the file: its place is outside functions.
    """
    try:
        script = Script(text, file)
    except (SyntaxError, ValueError):
        return None
    start = training_start(script, model)
    if start is None or binds_anew(script, code) or not _begins_line(script, start.statement):
        return None
    if "class " in code and script.tree.parents[start.statement] is not script.tree.module:
        return None
    at, indent = start.statement.lineno - 1, indent_of(script.lines, start.statement.lineno)
    own = (f"{indent}{line}" for line in in_code(code, start.model).strip("\n").split("\n") if line)
    return "\n".join([*script.lines[:at], *own, *script.lines[at:]])


def _begins_line(script: Script, statement: ast.stmt) -> bool:
    return not script.lines[statement.lineno - 1].encode()[: statement.col_offset].strip()


def _is_code(text: str) -> bool:
    """Tell whether a text is Python, and more than comments."""
    try:
        return bool(ast.parse(text).body)
    except SyntaxError:
        return False
