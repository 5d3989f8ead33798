"""Chains of alike modules and how their outputs grow from one to the next.

Must not know words or bounds of any rule.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile
from math import log2
from statistics import median

from fp16doctor.schema.ranges import ModuleRanges

_NUMBERED = re.compile(r"^(?P<stem>.*?)(?P<number>\d+)$")


@dataclass(frozen=True, slots=True)
class Chain:
    """Numbered siblings in order: ``body.0`` … ``body.31``."""

    stem: str  # "body."
    blocks: tuple[ModuleRanges, ...]
    amax: tuple[float, ...]  # first measured amax of each output

    @property
    def growth(self) -> float:
        """Binades gained from one block to the next: the median, so that one outlier is none."""
        return median(log2(b / a) for a, b in zip(self.amax, self.amax[1:], strict=False))

    @property
    def total(self) -> float:
        """Binades from the first block to the last."""
        return log2(self.amax[-1] / self.amax[0])


def chains(ranges: tuple[ModuleRanges, ...], shortest: int) -> list[Chain]:
    """Return all chains of at least ``shortest`` blocks of one class with a finite output each.

    A chain ends in front of the first output with an inf or a NaN: behind it amax is cut off.
    """
    groups: dict[tuple[str, str], list[tuple[int, ModuleRanges, float]]] = {}
    for r in ranges:
        match = _NUMBERED.match(r.module_path) if r.role == "output" else None
        first = _first_amax(r)
        if match and first > 0:
            key = (match["stem"], r.module_class)
            groups.setdefault(key, []).append((int(match["number"]), r, first))
    found = []
    for (stem, _), members in groups.items():
        members.sort(key=lambda m: m[0])
        members = list(takewhile(lambda m: _finite_at_first(m[1]), members))
        if len(members) >= shortest:
            blocks = tuple(m[1] for m in members)
            found.append(Chain(stem, blocks, tuple(m[2] for m in members)))
    return found


def _first_amax(ranges: ModuleRanges) -> float:
    return next((s.amax for s in ranges.stats if s.amax > 0), 0.0)


def _finite_at_first(ranges: ModuleRanges) -> bool:
    first = next((s for s in ranges.stats if s.amax > 0), None)
    return first is not None and not first.n_inf and not first.n_nan
