"""Renders the view as text for a terminal.

Must not word anything but its own labels: every other string comes from the view.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Iterator

from fp16doctor.report import wording
from fp16doctor.report.view import build_view
from fp16doctor.report.view_model import (
    AnswerView,
    BlameView,
    CodeLine,
    FindingView,
    RemedyView,
    ReportView,
    Table,
)
from fp16doctor.schema.diagnosis import Diagnosis

_COLORS = {
    "error": "31",
    "warning": "33",
    "note": "36",
    "clear": "32",
    "unknown": "33",
    "label": "2",
}
_ANSWER_LABEL = 8  # "verdict "
_PART_LABEL = 10  # "evidence  "
_LONGEST = 240  # a longer word is cut in the middle; the page has all of it
_LIMITS_SHOWN = 3
_BLAMED_SHOWN = 5
_BLAME_COLUMNS = 5  # the shares behind them are on the page


class _Page:
    """Lines of one width, coloured or not."""

    def __init__(self, width: int, color: bool) -> None:
        self._width, self._color = max(width, 40), color
        self.lines: list[str] = []

    def put(self, text: str, *, indent: int = 0, label: str = "", style: str = "label") -> None:
        """Add wrapped text behind a label of ``indent`` columns; words stay whole, to be copied."""
        body = textwrap.wrap(
            _cut(text), self._width - indent, break_long_words=False, break_on_hyphens=False
        )
        first = self._paint(label, style) + " " * (indent - len(label))
        for i, line in enumerate(body or [""]):
            self.lines.append((first if i == 0 else " " * indent) + line)

    def code(self, text: str, *, indent: int) -> None:
        """Add a line of code as it is: wrapped, it could not be pasted."""
        self.lines.append(" " * indent + _cut(text))

    def heading(self, head: str, text: str, style: str) -> None:
        """Add a coloured head and the text behind it, continued two columns in."""
        body = textwrap.wrap(
            f"{head} {_cut(text)}", self._width, subsequent_indent="  ",
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        body[0] = body[0].replace(head, self._paint(head, style), 1)
        self.lines += body

    def gap(self) -> None:
        """Add an empty line."""
        self.lines.append("")

    def _paint(self, text: str, style: str) -> str:
        return f"\x1b[{_COLORS[style]}m{text}\x1b[0m" if self._color and text else text


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
        verbose: Show notes, checks and limits in full.
    """
    view, page = build_view(diagnosis), _Page(width, color)
    _answer(page, view.answer)
    for finding in view.findings:
        short = finding.severity == "note" and not verbose
        if short:
            _note(page, finding)
        else:
            _finding(page, finding, verbose)
    _limits(page, view, verbose)
    if verbose:
        _details(page, view)
    page.gap()
    page.put(view.count_line)
    if outputs:
        html, json = (wording.visible(shlex.quote(path)) for path in outputs)
        page.lines.append(f"report: {html}        again: fp16doctor report {json}")
    return "\n".join(line.rstrip() for line in page.lines) + "\n"


def _answer(page: _Page, answer: AnswerView) -> None:
    page.put(answer.verdict, indent=_ANSWER_LABEL + 1, label="verdict", style=answer.mark)
    page.put(answer.place, indent=_ANSWER_LABEL + 1, label="place")
    page.put(answer.do, indent=_ANSWER_LABEL + 1, label="do")
    if answer.confirm:
        page.put(answer.confirm, indent=_ANSWER_LABEL + 1, label="confirm")
    page.put(answer.proof, indent=_ANSWER_LABEL + 1, label="proof")


def _head(page: _Page, finding: FindingView) -> None:
    head = f"{finding.severity} {finding.code} {finding.name}:"
    page.gap()
    page.heading(head, finding.what, finding.severity)


def _note(page: _Page, finding: FindingView) -> None:
    _head(page, finding)
    lines = [line.location for line in finding.lines[:1]]
    _part(page, "where", [wording.joined(finding.where, *lines)])


def _finding(page: _Page, finding: FindingView, verbose: bool) -> None:
    _head(page, finding)
    _part(page, "where", [finding.where, *map(_code, finding.lines), finding.repeats])
    _part(page, "evidence", finding.evidence)
    folded = f"folded under it: {finding.folded}" if finding.folded else ""
    _part(page, "cause", [finding.cause, finding.consequences, folded])
    _part(page, "chain", [finding.chain])
    for remedy in finding.remedies:
        _remedy(page, remedy, verbose)
    if not finding.remedies:
        _part(page, "remedy", [finding.advice])
        _part(page, "verified", [finding.unproved])
    _part(page, "explain", [finding.explain])


def _remedy(page: _Page, remedy: RemedyView, verbose: bool) -> None:
    if remedy.told:
        _part(page, "remedy", [f"{remedy.title}: {remedy.verdict}, see above"])
        return
    title = f"{remedy.title} ({', '.join(remedy.notes)})" if remedy.notes else remedy.title
    _part(page, "remedy", [title])
    for line in remedy.change.splitlines():
        page.code(line, indent=_PART_LABEL + 2)
    for form in remedy.forms if verbose else ():
        page.put(f"or, {form.name}:", indent=_PART_LABEL + 2)
        for line in form.change.splitlines():
            page.code(line, indent=_PART_LABEL + 4)
    if remedy.verdict in ("verified", "refuted"):
        _part(page, remedy.verdict, [remedy.proof or remedy.verdict])
    else:
        _part(page, "verified", [": ".join(p for p in (remedy.verdict, remedy.proof) if p)])


def _code(line: CodeLine) -> str:
    relation = f"{line.relation} " if line.relation else ""
    return f"{relation}{line.location}   {line.text}".rstrip()


def _part(page: _Page, label: str, texts: Iterable[str]) -> None:
    for i, text in enumerate(t for t in texts if t):
        page.put(text, indent=_PART_LABEL + 2, label=f"  {'' if i else label}")


def _limits(page: _Page, view: ReportView, verbose: bool) -> None:
    shown = view.limits if verbose else view.limits[:_LIMITS_SHOWN]
    left = len(view.limits) - len(shown)
    if view.limits or view.failed_checks:
        page.gap()
    for text in (*view.failed_checks, *shown):
        page.put(text, indent=_PART_LABEL + 2, label="not seen")
    if left:
        page.put(f"and {wording.count(left)} more (-v shows them)", indent=_PART_LABEL + 2)


def _blame(page: _Page, blame: BlameView) -> None:
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
        page.lines += _columns(Table(blame.table.head[:_BLAME_COLUMNS], narrow, left_out))


def _details(page: _Page, view: ReportView) -> None:
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
            page.lines += _columns(table)


def _columns(table: Table) -> Iterator[str]:
    rows = [tuple(_cut(cell) for cell in row) for row in (table.head, *table.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.head))]
    for row in rows:
        cells = (cell.ljust(size) for cell, size in zip(row, widths, strict=True))
        yield "  " + "  ".join(cells)
    if table.left_out:
        yield f"  {table.left_out}"


def _cut(text: str) -> str:
    return " ".join(wording.shortened(word, _LONGEST) for word in text.split(" "))
