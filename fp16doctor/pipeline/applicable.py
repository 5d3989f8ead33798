"""No edit is told that the file does not take: what has been edited must be Python again.

A line of a longer statement, or half of one, can be right by itself and wrong in its place. Then
the cure is told in words.

Must not know how an edit was made (``prescribe``).
"""

from __future__ import annotations

import ast
import os
import tokenize
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

from fp16doctor.apply.line_edit import LineEdit, edits_in, patched_text
from fp16doctor.pipeline.own_lines import ScriptText
from fp16doctor.schema.prescription import Prescription, Remedy, RemedyKind

Read = Callable[[str], str]  # a file's name as source lines have it -> its text, "" for none


def applicable(
    prescriptions: Sequence[Prescription], script: ScriptText, folder: str
) -> tuple[Prescription, ...]:
    """Return the prescriptions; an edit that its file does not take is put into words.

    Args:
        prescriptions: of one diagnosis.
        script: its text as it was when the run began.
        folder: the script's, which names of other files start from.
    """

    def read(file: str) -> str:
        return script.text if file == script.name else text_of(os.path.join(folder, file))

    return tuple(replace(p, remedy=_checked(p.remedy, read)) for p in prescriptions)


def _checked(remedy: Remedy, read: Read) -> Remedy:
    edits = edits_in(remedy.change) if remedy.change else ()
    by_file: dict[str, list[LineEdit]] = {}
    for edit in edits:
        by_file.setdefault(edit.file, []).append(edit)
    if all(_takes(read(file), its) for file, its in by_file.items()):
        return remedy
    if remedy.kind is not RemedyKind.FP32_KEEP:
        return replace(remedy, change="")  # the title says what to do
    words = (f"# {e.file}:{e.first}: compute `{e.old[0]}` from inputs with .float()" for e in edits)
    return replace(remedy, change="\n".join((*words, *(f"# {c}" for c in remedy.casts))))


def _takes(text: str, edits: list[LineEdit]) -> bool:
    """Tell whether a file with the edits is Python; True where there is no text to tell from."""
    if not text:
        return True
    edited = patched_text(text, tuple(edits))
    return edited is not None and _is_python(edited)


def _is_python(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parser's, on escapes: the run has shown its own
            ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def text_of(path: str) -> str:
    """Return the text of a file of Python, "" where it cannot be read."""
    try:
        with tokenize.open(path) as stream:
            return stream.read()
    except (OSError, SyntaxError, ValueError):
        return ""
