"""What an answer gives to paste, on the page and on a terminal: the text of the cure it names.

Must not know how a cure was tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from fp16doctor.report.view_model import PasteView
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.prescription import Prescription, Verdict
from fp16doctor.schema.start import ScanStart

_LONG = 19  # lines from which a text is shown in a box of limited height
_HEAD = re.compile(r"^--- a/(?!/)(.*)\n\+\+\+ b/(?!/)(.*)$", re.MULTILINE)  # of a diff of one file
_NOT_VERIFIED = "not verified"
_SHORT_FORM = "fp16doctor"  # the form that calls this package: the shortest where there is one


def pastes(diagnosis: Diagnosis, do: str) -> tuple[PasteView, ...]:
    """The recommended cure's texts; without one, the untried cure that ``do`` names."""
    chosen = [diagnosis.prescriptions[i] for i in diagnosis.recommendation.prescriptions]
    if not any(c.remedy.change for c in chosen):
        chosen = list(_named(diagnosis, do))[:1]
    return tuple(_paste(c, diagnosis.start) for c in chosen if c.remedy.change)


def _named(diagnosis: Diagnosis, do: str) -> Iterator[Prescription]:
    for cure in sorted(diagnosis.prescriptions, key=lambda c: _place(c, do)):
        untried = cure.verification.verdict is Verdict.NOT_VERIFIED
        if untried and cure.remedy.change and _place(cure, do) >= 0:
            yield cure


def _place(cure: Prescription, do: str) -> int:
    """Where the line has the cure's title: of several, the first is the one it asks for."""
    return do.find(cure.remedy.title)


def _paste(cure: Prescription, start: ScanStart | None) -> PasteView:
    text = _from_folder(_told(cure).rstrip("\n"), start)
    verified = cure.verification.verdict is Verdict.VERIFIED
    return PasteView(
        title=cure.remedy.title,
        change=text,
        kind=_kind(text),
        unproved="" if verified else _NOT_VERIFIED,
        long=len(text.splitlines()) > _LONG,
    )


def _told(cure: Prescription) -> str:
    """The shortest text that does it, the same wherever the answer is shown."""
    short = cure.remedy.forms.get(_SHORT_FORM, "").replace("\n\n", "\n")
    return short or cure.remedy.change


def _from_folder(text: str, start: ScanStart | None) -> str:
    """A diff with its files as seen from the folder the script was started in.

    Lines of a report are named from the script's own folder; patch looks from where it is called.
    """
    if start is None or not start.file:
        return text
    script, folder = PurePath(start.file), PurePath(start.folder)
    below = script.parent.relative_to(folder).as_posix() if folder in script.parents else "."
    if below == ".":
        return text
    return _HEAD.sub(lambda m: f"--- a/{below}/{m[1]}\n+++ b/{below}/{m[2]}", text)


def _kind(text: str) -> str:
    """Comments alone are no code: they say what to change."""
    if text.startswith("--- "):
        return "diff of the script, for patch -p1" + _of_ours(text)
    lines = (line.lstrip() for line in text.splitlines())
    kind = "in words" if all(line.startswith("#") for line in lines if line) else "code"
    return kind + _of_ours(text)


def _of_ours(text: str) -> str:
    """Where the script would need this package to train."""
    ours = "import fp16doctor" in text
    return "; trains with fp16doctor installed, plain torch: under Prescriptions" if ours else ""
