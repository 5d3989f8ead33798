"""Puts the script's own names into the words of a change whose diff has them.

Must not know how a diff is found (``own_lines``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from fp16doctor.schema.finding import Finding
from fp16doctor.schema.prescription import Prescription, Recommendation, RemedyKind

_CODE = re.compile(r"`[^`]*`")
_EDITED = re.compile(r"^[-+](?![-+]{2} ).*$", re.MULTILINE)
# What an advice calls them, and where a diff names them.
_NAMES = {
    "scaler": re.compile(r"([\w.]+)\.(?:step|unscale_)\([\w.]+\)|([\w.]+)\.update\(\)"),
    "optimizer": re.compile(r"[\w.]+\.(?:step|unscale_)\(([\w.]+)\)|([\w.]+)\.step\(\)"),
}

Told = tuple[tuple[Prescription, ...], tuple[Finding, ...], Recommendation]


def with_own_names(
    prescriptions: Sequence[Prescription], findings: Sequence[Finding], answer: Recommendation
) -> Told:
    """Return all three with ``grad_scaler`` for ``scaler`` in the code that words quote.

    Only changes of code that come as a diff; a name that the diff has not stays the general one.
    """
    own: dict[str, str] = {}
    for cure in prescriptions:
        remedy = cure.remedy
        if remedy.kind is RemedyKind.CODE_FIX and remedy.change.startswith("--- "):
            own[remedy.title] = _renamed(remedy.title, remedy.change)
    sentence = answer.sentence
    for old, new in own.items():
        sentence = sentence.replace(old, new)
    return (
        tuple(replace(p, remedy=replace(p.remedy, title=own.get(p.remedy.title, p.remedy.title)))
              for p in prescriptions),
        tuple(replace(f, advice=own.get(f.advice, f.advice)) for f in findings),
        replace(answer, sentence=sentence),
    )  # fmt: skip


def _renamed(title: str, change: str) -> str:
    """Return a title with the names of a diff in the code that it quotes."""
    edited = "\n".join(_EDITED.findall(change))
    names = {}
    for general, pattern in _NAMES.items():
        found = {next(filter(None, groups)) for groups in pattern.findall(edited)}
        if len(found) == 1:
            names[general] = found.pop()

    def spelled(code: re.Match[str]) -> str:
        text = code[0]
        for general, name in names.items():
            text = re.sub(rf"(?<![\w.]){general}\b", name, text)
        return text

    return _CODE.sub(spelled, title)
