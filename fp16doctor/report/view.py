"""Turns a Diagnosis into the plain view that every output is drawn from.

Must not know HTML or terminals.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from fp16doctor.report import tables, wording
from fp16doctor.report.answer import answer
from fp16doctor.report.blame_view import blame_view
from fp16doctor.report.cure_table import cure_table
from fp16doctor.report.explorer import explorer
from fp16doctor.report.finding_view import finding_view, ranked, remedy_view
from fp16doctor.report.glossary import terms_used
from fp16doctor.report.view_model import LimitView, PictureView, ReportView
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.recording import Caution

_MULTILINE = ("change", "short", "svg")  # the fields whose line breaks are meant


def build_view(diagnosis: Diagnosis, *, pictures: bool = False) -> ReportView:
    """Word the whole diagnosis; every string is safe to print and to encode as UTF-8.

    ``pictures`` are drawn only where they are shown.
    """
    raw = _raw_view(diagnosis)
    if pictures:
        raw = _with_pictures(raw, diagnosis)
    view: ReportView = _cleaned(raw)
    return dataclasses.replace(view, glossary=terms_used(_strings(view)))


def _raw_view(diagnosis: Diagnosis) -> ReportView:
    remedies = tuple(remedy_view(diagnosis, i) for i in ranked(diagnosis))
    return ReportView(
        title=f"fp16doctor: {_file_name(diagnosis.run.script)}",
        answer=answer(diagnosis),
        recommendation=diagnosis.recommendation.sentence,
        remedies=remedies,
        cures=cure_table(remedies),
        no_remedies="no cure was tried by replay",
        findings=tuple(finding_view(diagnosis, i) for i in range(len(diagnosis.findings))),
        no_findings="no check found anything in what was seen",
        blame=blame_view(diagnosis),
        pictures=(),
        no_pictures="",
        explorer=None,
        ranges=tables.ranges_table(diagnosis),
        steps=tables.steps_table(diagnosis),
        steps_line=tables.steps_line(diagnosis),
        checks=tables.checks_table(diagnosis),
        failed_checks=tables.failed_checks(diagnosis),
        facts=tables.facts_table(diagnosis),
        formats=tables.formats_table(diagnosis),
        limits=tuple(map(_limit, diagnosis.warnings)),
        no_limits="nothing was left out",
        stand_ins=tables.stand_ins_table(diagnosis),
        glossary=(),
        count_line=tables.count_line(diagnosis),
    )


def _limit(caution: Caution) -> LimitView:
    first = wording.first_sentence(caution.message)
    more = caution.message[len(first) :].strip(". ")
    return LimitView(f"{first}  [{caution.slug}]", more)


def _file_name(script: str) -> str:
    """The last part of the path; the facts of the run have all of it."""
    return PurePath(script).name or script


def _with_pictures(view: ReportView, diagnosis: Diagnosis) -> ReportView:
    """Add the drawings; a page without them still says everything."""
    try:
        from fp16doctor.report.pictures import pictures

        drawn = pictures(diagnosis)
    except Exception as error:  # noqa: BLE001 - matplotlib, or what the script put in its place
        why = f"the pictures could not be drawn: {type(error).__name__}: {error}"
        return dataclasses.replace(view, no_pictures=why, explorer=explorer(diagnosis))
    return dataclasses.replace(view, pictures=drawn, explorer=explorer(diagnosis))


def _cleaned(value: Any, name: str = "") -> Any:
    if isinstance(value, str):
        return wording.visible(value, keep_newlines=name in _MULTILINE)
    if isinstance(value, tuple):
        return tuple(_cleaned(v) for v in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value)]
        return dataclasses.replace(value, **{n: _cleaned(getattr(value, n), n) for n in names})
    return value


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, PictureView):
        value = (value.title, value.caption)  # a drawing holds no words of its own
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _strings(item)
    elif dataclasses.is_dataclass(value):
        for f in dataclasses.fields(value):
            yield from _strings(getattr(value, f.name))
