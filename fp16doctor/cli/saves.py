"""Finds the first line of a script that writes a file, by reading its source, and warns of it.

Must not run anything.
"""

from __future__ import annotations

import ast

from fp16doctor.cli.voice import Voice
from fp16doctor.record.script import PreparedScript

_SAVERS = ("save", "save_pretrained", "save_model", "save_checkpoint", "save_state")
_WRITING = frozenset("wax+")


def first_saving_line(source: str | bytes | None) -> tuple[int, str] | None:
    """Return (line, call) of the first ``torch.save``, ``….save(``, ``open(…, "w")``, or None.

    The call is named as in the source, e.g. ``torch.save``.
    """
    if source is None:
        return None
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _saves(node)]
    first = min(calls, key=lambda call: call.lineno, default=None)
    return None if first is None else (first.lineno, ast.unparse(first.func))


def warn_of_saves(prepared: PreparedScript, steps: int, voice: Voice) -> None:
    """Say that a script which ``--steps`` ends early writes files."""
    saving = first_saving_line(prepared.source)
    if saving is not None:
        line, call = saving
        voice.warn(
            f"--steps {steps} ends the script early, and line {line} of"
            f" {prepared.target.name!r} calls {call}: files it saves may be missing or come from"
            " a half-trained model  [script-saves]"
        )


def _saves(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr in _SAVERS:
        return True
    if isinstance(function, ast.Name) and function.id in _SAVERS:
        return True
    return isinstance(function, ast.Name) and function.id == "open" and _opens_to_write(call)


def _opens_to_write(call: ast.Call) -> bool:
    given = [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
    modes = [*call.args[1:2], *given]
    return any(
        isinstance(mode, ast.Constant)
        and isinstance(mode.value, str)
        and bool(_WRITING & set(mode.value))
        for mode in modes
    )
