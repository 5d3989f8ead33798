"""Renders the view as text for a terminal.

Must not word anything but its own labels: every other string comes from the view.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from fp16doctor.report import terminal_cures, wording
from fp16doctor.report.layout import Lines
from fp16doctor.report.view import build_view
from fp16doctor.report.view_model import (
    BlameView,
    CodeLine,
    FindingView,
    RemedyView,
    ReportView,
    Table,
)
from fp16doctor.schema.diagnosis import Diagnosis

_ANSWER_LABEL = 8  # "verdict "
_LESS_EVIDENCE = 3  # lines of a finding, unless all of it is asked for
_PART_LABEL = 10  # "evidence  "
_LIMITS_SHOWN = 3
_BLAMED_SHOWN = 5
_BLAME_COLUMNS = 5  # the shares behind them are on the page


def render_terminal(
    diagnosis: Diagnosis,
    *,
    color: bool,
    width: int,
    outputs: tuple[str, str] | None,
    verbose: bool,
) -> str:
    """Return the report as text that ends in a line feed.

    Args:
        diagnosis: What to show.
        color: Use ANSI colours; every coloured word also stands there as a word.
        width: Columns to wrap at.
        outputs: Paths of the page and of the JSON, if they were written.
        verbose: Show findings, cures with their code, checks and limits in full.
    """
    view, page = build_view(diagnosis), Lines(width, color)
    _answer(page, view)
    for finding in view.findings:
        short = finding.severity == "note" and not verbose
        if short:
            _note(page, finding)
        else:
            _finding(page, finding, verbose)
    if view.findings:
        terminal_cures.table(page, view.remedies, view.cures, "" if verbose else _more(outputs))
    _limits(page, view, verbose)
    if verbose:
        _details(page, view)
    page.gap()
    page.put(view.count_line)
    if outputs:
        html, json = map(_quoted, outputs)
        page.lines.append(f"report: {html}        again: fp16doctor report {json}")
    return page.text()


def _quoted(path: str) -> str:
    return wording.visible(shlex.quote(path))


def _more(outputs: tuple[str, str] | None) -> str:
    """Where the code of the cures stands that is not printed."""
    again = f", or: fp16doctor report {_quoted(outputs[1])} -v" if outputs else ""
    return f"all code and evidence: on the page{again}"


def _answer(page: Lines, view: ReportView) -> None:
    answer = view.answer
    indent = _ANSWER_LABEL + 1
    page.put(answer.verdict, indent=indent, label="verdict", style=answer.mark, strong=True)
    if answer.details:
        page.put(answer.details, indent=_ANSWER_LABEL + 1)
    place = wording.joined(answer.line, answer.place)
    page.put(place, indent=_ANSWER_LABEL + 1, label="place")
    page.put(answer.do, indent=_ANSWER_LABEL + 1, label="do")
    terminal_cures.paste(page, answer)
    if answer.confirm:
        page.put(answer.confirm, indent=_ANSWER_LABEL + 1, label="confirm")
    page.put(answer.proof, indent=_ANSWER_LABEL + 1, label="proof")


def _head(page: Lines, finding: FindingView) -> None:
    head = f"{finding.severity} {finding.code} {finding.name}:"
    page.gap()
    page.heading(head, finding.what, finding.severity)


def _note(page: Lines, finding: FindingView) -> None:
    _head(page, finding)
    lines = [line.location for line in finding.lines[:1]]
    _part(page, "where", [wording.joined(finding.where, *lines), finding.repeats])


def _finding(page: Lines, finding: FindingView, verbose: bool) -> None:
    _head(page, finding)
    _part(page, "where", [finding.where, *map(_code, finding.lines), finding.repeats])
    _part(page, "evidence", finding.evidence if verbose else _shortened(finding.evidence))
    folded = f"folded under it: {finding.folded}" if finding.folded else ""
    _part(page, "cause", [finding.cause, finding.consequences, folded])
    if verbose:
        _part(page, "chain", [finding.chain])
        for remedy in finding.remedies:
            _remedy(page, remedy)
    if not finding.remedies:
        _part(page, "remedy", [finding.advice])
        _part(page, "verified", [finding.unproved])
    _part(page, "explain", [finding.explain])


def _shortened(evidence: Sequence[str]) -> list[str]:
    """The first lines; one line that counts others is longer than one other."""
    if len(evidence) <= _LESS_EVIDENCE + 1:
        return list(evidence)
    left = len(evidence) - _LESS_EVIDENCE
    return [*evidence[:_LESS_EVIDENCE], f"and {wording.count(left)} more (-v shows them)"]


def _remedy(page: Lines, remedy: RemedyView) -> None:
    if remedy.told:
        _part(page, "remedy", [f"{remedy.title}: {remedy.verdict}, see above"])
        return
    title = f"{remedy.title} ({', '.join(remedy.notes)})" if remedy.notes else remedy.title
    _part(page, "remedy", [title])
    page.code(remedy.change, indent=_PART_LABEL + 2)
    for form in remedy.forms:
        page.put(f"or, {form.name}:", indent=_PART_LABEL + 2)
        page.code(form.change, indent=_PART_LABEL + 4)
    if remedy.verdict in ("verified", "refuted"):
        _part(page, remedy.verdict, [remedy.proof or remedy.verdict])
    else:
        _part(page, "verified", [": ".join(p for p in (remedy.verdict, remedy.proof) if p)])


def _code(line: CodeLine) -> str:
    relation = f"{line.relation} " if line.relation else ""
    return f"{relation}{line.location}   {line.text}".rstrip()


def _part(page: Lines, label: str, texts: Iterable[str]) -> None:
    for i, text in enumerate(t for t in texts if t):
        page.put(text, indent=_PART_LABEL + 2, label=f"  {'' if i else label}")


def _limits(page: Lines, view: ReportView, verbose: bool) -> None:
    """What was not seen; the proof line has said the first, but for its details."""
    later = view.limits if verbose else view.limits[1 : 1 + _LIMITS_SHOWN]
    left = 0 if verbose else max(len(view.limits) - 1 - len(later), 0)
    if later or view.failed_checks:
        page.gap()
    for text in view.failed_checks:
        page.put(text, indent=_PART_LABEL + 2, label="not seen")
    for limit in later:
        page.put(limit.text, indent=_PART_LABEL + 2, label="not seen")
        if verbose and limit.more:
            page.put(limit.more, indent=_PART_LABEL + 2)
    if left:
        page.put(f"and {wording.count(left)} more (-v shows them)", indent=_PART_LABEL + 2)


def _blame(page: Lines, blame: BlameView) -> None:
    if not blame.line and not blame.note:
        return
    page.gap()
    page.put("shares of the error")
    for text in (blame.line, blame.note):
        if text:
            page.put(text, indent=2)
    rows = blame.table.rows[:_BLAMED_SHOWN]
    left = len(blame.table.rows) - len(rows)
    left_out = f"… and {wording.count(left)} more (in the JSON)" if left else ""
    if rows:
        narrow = tuple(row[:_BLAME_COLUMNS] for row in rows)
        _columns(page, Table(blame.table.head[:_BLAME_COLUMNS], narrow, left_out))


def _details(page: Lines, view: ReportView) -> None:
    _blame(page, view.blame)
    for title, table in (
        ("checks", view.checks),
        ("stand-ins in the replay", view.stand_ins),
        ("steps", view.steps),
        ("run", view.facts),
    ):
        if table.rows:
            page.gap()
            page.put(title)
            _columns(page, table)


def _columns(page: Lines, table: Table) -> None:
    page.columns([table.head, *table.rows])
    if table.left_out:
        page.lines.append(f"  {table.left_out}")
