"""Calls the model in code to paste what the script calls it.

Must not know what the code does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from fp16doctor.schema.prescription import Prescription

_GENERAL = re.compile(r"(?<![\w.'\"])model(?=[\s,.)\]]|$)", re.MULTILINE)
_OWN = ("- ", "+ ")  # lines of an edit have the script's names already


def with_own_model(prescriptions: Sequence[Prescription], name: str) -> tuple[Prescription, ...]:
    """Return the prescriptions with ``name`` for ``model`` in the code that they give."""
    if not name or name == "model":
        return tuple(prescriptions)
    return tuple(_renamed(p, name) for p in prescriptions)


def _renamed(cure: Prescription, name: str) -> Prescription:
    remedy = cure.remedy
    forms = {words: in_code(code, name) for words, code in remedy.forms.items()}
    return replace(cure, remedy=replace(remedy, change=in_code(remedy.change, name), forms=forms))


def in_code(code: str, name: str) -> str:
    """Return code that expects ``model`` with another name for it; a diff has its own names."""
    if code.startswith("--- "):
        return code
    return "\n".join(_in_line(line, name) for line in code.split("\n"))


def _in_line(line: str, name: str) -> str:
    if line.startswith(_OWN):
        return line
    said, mark, comment = line.partition("#")
    return _GENERAL.sub(name, said) + mark + comment
