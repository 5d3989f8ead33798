"""The cures as a table: one row a cure, one column a quantity, with the numbers before and after.

The page shows the cells, a terminal the numbers before once and those after below them.

Must not know how a cure was tried, or what its row looks like.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fp16doctor.report import wording
from fp16doctor.report.glossary import LOSS_AFTER, meanings
from fp16doctor.report.view_model import CureTable, RemedyView
from fp16doctor.schema import spelling

_ORDER = (
    "non-finite elements",
    "non-finite ops",
    "gradient lost",
    "gradient error",
    "descent kept",
    "realised fraction",
    "largest update error",
    "binades gained per block",
    "loss scale",
)
# Shares and errors, each with the value of a perfect cure. Numbers that are that value to within
# one percent point tell no cure from another; the proof of each cure has them all the same.
_PERFECT = {
    "gradient lost": 0.0,
    "gradient error": 0.0,
    "descent kept": 1.0,
    "realised fraction": 1.0,
    "largest update error": 0.0,
}
_POINT = 0.01
_BY_STEPS = re.compile(r"loss after (\d+) steps?")
_ZERO = {"0", wording.NOTHING}
_NONE = (wording.NOTHING, wording.NOTHING)
Pairs = dict[str, tuple[str, str]]  # quantity -> (before, after)


def cure_table(remedies: Sequence[RemedyView]) -> CureTable:
    """Return the columns, a row of cells for each of ``remedies``, and what the columns mean."""
    courses = [_steps(r) for r in remedies]
    several = len({n for n in courses if n}) > 1
    seen = [_pairs(r, several=several) for r in remedies]
    columns = _columns(seen)
    numbers = tuple(tuple(pairs.get(c, _NONE) for c in columns) for pairs in seen)
    rows = tuple(tuple(_cell(c, pairs, seen) for c in columns) for pairs in seen)
    dash = any(wording.NOTHING in cell for row in rows for cell in row)
    left = tuple(dict.fromkeys(n for p in seen for n in p if n in _PERFECT and n not in columns))
    return CureTable(columns, numbers, rows, meanings(columns, dash=dash), left)


def _steps(remedy: RemedyView) -> str:
    """Over how many steps the cure was followed, "" where it was not."""
    found = (_BY_STEPS.fullmatch(name) for name, *_ in remedy.comparison)
    return next((m[1] for m in found if m), "")


def _pairs(remedy: RemedyView, *, several: bool) -> Pairs:
    """The numbers by column; losses after different numbers of steps share one."""
    pairs: Pairs = {}
    for name, old, new in remedy.comparison:
        match = _BY_STEPS.fullmatch(name)
        if match and several:
            after = wording.plural(int(match[1]), "step")
            pairs[LOSS_AFTER] = (old, f"{new} ({after})")
        else:
            pairs[name] = (old, new)
    return pairs


def _columns(seen: Sequence[Pairs]) -> tuple[str, ...]:
    """Known quantities first; ops only where the elements that end up non-finite tell nothing."""
    names = list(dict.fromkeys(name for pairs in seen for name in pairs))
    if "non-finite elements" in names and not _all_zero("non-finite elements", seen):
        names = [n for n in names if n != "non-finite ops"]
    if _all_zero("non-finite ops", seen):
        names = [n for n in names if n != "non-finite ops"]
    names = [n for n in names if _tells(n, seen)]
    if len(names) > 1 and _all_zero("non-finite elements", seen):
        names = [n for n in names if n != "non-finite elements"]
    known = [n for n in _ORDER if n in names]
    return (*known, *(n for n in names if n not in known))


def _tells(name: str, seen: Sequence[Pairs]) -> bool:
    """Whether a share or an error is off its best value somewhere, in the run or under a cure."""
    if name not in _PERFECT:
        return True
    cells = (cell for pairs in seen for cell in pairs.get(name, ()))
    values = (spelling.value(cell) for cell in cells if cell != wording.NOTHING)
    return any(v is None or abs(v - _PERFECT[name]) > _POINT for v in values)


def _all_zero(name: str, seen: Sequence[Pairs]) -> bool:
    return all(value in _ZERO for pairs in seen for value in pairs.get(name, ()))


def _cell(name: str, pairs: Pairs, seen: Sequence[Pairs]) -> str:
    """``before → after``; the number after alone where no row has one before."""
    old, new = pairs.get(name, _NONE)
    if all(p[name][0] == wording.NOTHING for p in seen if name in p):
        return new
    return f"{old} → {new}" if name in pairs else wording.NOTHING
