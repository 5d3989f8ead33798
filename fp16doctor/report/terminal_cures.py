"""The cures of a report on a terminal: what to paste, once, and a table of all that were tried.

Must not know findings, nor word anything but labels and what its columns mean.
"""

from __future__ import annotations

from collections.abc import Sequence

from fp16doctor.report import wording
from fp16doctor.report.glossary import short_head
from fp16doctor.report.layout import Lines, aligned, cells, padded, wrapped
from fp16doctor.report.view_model import AnswerView, CureTable, PasteView, RemedyView

MOST_PASTED = 24  # lines; a longer text would push the answer off the screen
_LABEL = 9  # columns, as in the answer
_LEAST_ROOM = 30  # columns in which a title may be wrapped behind its numbers


def paste(page: Lines, answer: AnswerView) -> None:
    """Put what the answer asks for as text to paste, shortest form."""
    text = "\n".join(_block(p, named=len(answer.pastes) > 1) for p in answer.pastes)
    n_lines = len(text.splitlines())
    if n_lines > MOST_PASTED:
        where = "on the page, and with -v"
        page.put(f"{n_lines} lines: {where}", indent=_LABEL, label="paste")
    elif text:
        page.code(text, indent=_LABEL, label="paste")


def _block(given: PasteView, *, named: bool) -> str:
    return f"# {given.title}\n{given.change}" if named else given.change


def table(page: Lines, remedies: Sequence[RemedyView], cures: CureTable, more: str) -> None:
    """Put one row a cure, the run itself on top; ``more`` says where their code stands.

    ``cures`` has their numbers, a row for each of ``remedies``.
    """
    if not remedies:
        return
    shown = [i for i in range(len(cures.columns)) if _tells(cures, i)]
    heads = [short_head(cures.columns[i]) for i in shown]
    numbers = [[row[i][1] for i in shown] for row in cures.numbers]
    body = [[head for head, _ in heads], [_as_run(cures, i) for i in shown], *numbers]
    firsts = _first_column(remedies)
    lines = list(aligned([[first, *row] for first, row in zip(firsts, body, strict=True)]))
    page.gap()
    page.lines.append(page.paint(lines[0].rstrip(), "label"))
    if shown:
        page.lines.append(lines[1])
    _rows(page, remedies, [line if set(row) - {wording.NOTHING} else ""
                           for line, row in zip(lines[2:], numbers, strict=True)])  # fmt: skip
    legend = (f"{head}: {meaning}" for head, meaning in heads if meaning)
    for text in ("; ".join(legend), more):
        if text:
            page.put(text)


def _first_column(remedies: Sequence[RemedyView]) -> list[str]:
    verdicts = [r.verdict for r in remedies]
    tried = any(v != "not verified" for v in verdicts)
    return ["cures tried" if tried else "cures", "as run", *verdicts]


def _tells(cures: CureTable, column: int) -> bool:
    """A column of zeros alone says nothing."""
    values = {v for row in cures.numbers for v in row[column]}
    return bool(values - {"0", wording.NOTHING})


def _as_run(cures: CureTable, column: int) -> str:
    """The number before, of the first cure that has one."""
    before = (row[column][0] for row in cures.numbers)
    return next((v for v in before if v != wording.NOTHING), wording.NOTHING)


def _rows(page: Lines, remedies: Sequence[RemedyView], numbers: Sequence[str]) -> None:
    side = max(map(cells, _first_column(remedies))) + 2
    alone = sum(r.recommended for r in remedies) == 1
    for remedy, line in zip(remedies, numbers, strict=True):
        said = f"{remedy.standing}: as above" if alone and remedy.recommended else _said(remedy)
        _row(page, remedy.verdict, line, said, side)


def _said(remedy: RemedyView) -> str:
    """What a cure does, and what it costs where that is known: a cheaper one may do."""
    cost = next((f" ({n})" for n in remedy.notes if n.startswith("cost: ")), "")
    title = remedy.title + (cost if remedy.verdict == "verified" else "")
    return ": ".join(p for p in (remedy.standing, title, remedy.reason) if p)


def _row(page: Lines, verdict: str, numbers: str, said: str, side: int) -> None:
    """One cure: behind its numbers, or where those leave little room, below them."""
    room = page.width - cells(numbers) - 2
    if not numbers:
        page.put(said, indent=side, label=verdict, style=verdict)
        return
    painted = page.paint(verdict, verdict) + numbers[len(verdict) :]
    if cells(said) > room and (room < _LEAST_ROOM or cells(said) > 2 * room):
        page.lines.append(painted)
        page.put(said, indent=side)
        return
    first, *rest = wrapped(said, room)
    page.lines.append(f"{painted}  {first}")
    page.lines += [padded("", cells(numbers) + 2) + line for line in rest]
