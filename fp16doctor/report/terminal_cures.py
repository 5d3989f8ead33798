"""The cures of a report on a terminal: what to paste, once, and a table of all that were tried.

Must not know findings, nor word anything but labels and what its columns mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from fp16doctor.report import wording
from fp16doctor.report.layout import Lines, aligned, cells, padded, wrapped
from fp16doctor.report.view_model import AnswerView, RemedyView

MOST_PASTED = 24  # lines; a longer text would push the answer off the screen
_LABEL = 9  # columns, as in the answer
_SHORT_FORM = "fp16doctor"  # the form that calls this package: the shortest where there is one
_LEAST_ROOM = 30  # columns in which a title may be wrapped behind its numbers
_LOSS = re.compile(r"loss( after \d+ steps?)?")
_HEADS = {
    "non-finite elements": "non-finite",
    "gradient lost": "lost",
    "gradient error": "error",
    "descent kept": "descent",
    "binades gained per block": "growth",
}
_MEANINGS = {
    "lost": "share of a parameter's gradient that becomes 0",
    "error": "‖g − fp32 g‖/‖fp32 g‖",
    "descent": "share of fp32's",
    "growth": "of amax from block to block",
    "loss": "{}",
}


def paste(page: Lines, answer: AnswerView, remedies: Sequence[RemedyView]) -> None:
    """Put what the answer asks for as text to paste, shortest form."""
    chosen = to_paste(answer, remedies)
    blocks = [_block(remedy, named=len(chosen) > 1) for remedy in chosen]
    text = "\n".join(b for b in blocks if b)
    n_lines = len(text.splitlines())
    if n_lines > MOST_PASTED:
        where = "on the page, and with -v"
        page.put(f"{n_lines} lines: {where}", indent=_LABEL, label="paste")
    elif text:
        page.code(text, indent=_LABEL, label="paste")


def to_paste(answer: AnswerView, remedies: Sequence[RemedyView]) -> list[RemedyView]:
    """The recommended cures; without one, the edit that the answer names as not verified."""
    chosen = [r for r in remedies if r.recommended]
    if chosen:
        return chosen
    return [r for r in remedies if r.verdict == "not verified" and r.title in answer.do][:1]


def _block(remedy: RemedyView, *, named: bool) -> str:
    short = next((f.change for f in remedy.forms if f.name == _SHORT_FORM), "")
    text = short.replace("\n\n", "\n") or remedy.change
    return f"# {remedy.title}\n{text}" if named and text else text


def table(page: Lines, remedies: Sequence[RemedyView], more: str) -> None:
    """Put one row a cure, the run itself on top; ``more`` says where their code stands."""
    if not remedies:
        return
    names = _quantities(remedies)
    verdicts = ["cures tried", "as run", *(r.verdict for r in remedies)]
    numbers = [[heading(n) for n in names], _as_run(remedies, names)]
    numbers += [_numbers(remedy, names) for remedy in remedies]
    lines = list(aligned([[verdict, *row] for verdict, row in zip(verdicts, numbers, strict=True)]))
    page.gap()
    page.lines.append(page.paint(lines[0].rstrip(), "label"))
    if names:
        page.lines.append(lines[1])
    side = max(map(cells, verdicts)) + 2
    alone = sum(r.recommended for r in remedies) == 1
    for remedy, line in zip(remedies, lines[2:], strict=True):
        said = "recommended: as above" if alone and remedy.recommended else _said(remedy)
        _row(page, remedy.verdict, line if _has_numbers(remedy, names) else "", said, side)
    for text in ("; ".join(_legend(names)), more):
        if text:
            page.put(text)


def _said(remedy: RemedyView) -> str:
    mark = "recommended" if remedy.recommended else ""
    return ": ".join(p for p in (mark, remedy.title, remedy.reason) if p)


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


def _quantities(remedies: Sequence[RemedyView]) -> list[str]:
    """The quantities that have a column: those a reader judges a cure by, in a fixed order."""
    seen = {name: (old, new) for r in remedies for name, old, new in r.comparison}
    losses = list(dict.fromkeys(name for name in seen if _LOSS.fullmatch(name)))
    wanted = [*_HEADS, *losses[:1]]
    return [name for name in wanted if name in seen and _tells(name, remedies)]


def _tells(name: str, remedies: Sequence[RemedyView]) -> bool:
    """A column of zeros alone says nothing."""
    values = {v for r in remedies for n, *both in r.comparison if n == name for v in both}
    return bool(values - {"0", wording.NOTHING})


def heading(name: str) -> str:
    """The head of a quantity's column."""
    return _HEADS.get(name, "loss")


def _as_run(remedies: Sequence[RemedyView], names: Sequence[str]) -> list[str]:
    first = next((r for r in remedies if r.comparison), None)
    before = {name: old for name, old, _ in first.comparison} if first else {}
    return [before.get(name, wording.NOTHING) for name in names]


def _has_numbers(remedy: RemedyView, names: Sequence[str]) -> bool:
    return any(number != wording.NOTHING for number in _numbers(remedy, names))


def _numbers(remedy: RemedyView, names: Sequence[str]) -> list[str]:
    after = {name: new for name, _, new in remedy.comparison}
    return [after.get(name, wording.NOTHING) for name in names]


def _legend(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        head = heading(name)
        if head in _MEANINGS and name != "loss":
            yield f"{head}: {_MEANINGS[head].format(name.removeprefix('loss '))}"
