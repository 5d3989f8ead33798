"""Cuts what an excerpt is given as long as it still shows its fault.

Dimensions are cut one by one, and those of equal size together: rows of one operand, columns of
another, the batch of all. Whether a cut is allowed is not reasoned about, it is run.

Must not know ops.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import combinations

import torch
from torch import Tensor

MOST_RUNS = 600
MOST_SECONDS = 12.0

Given = dict[str, Tensor]
Dim = tuple[str, int]  # tensor, dimension from the left
Group = tuple[Dim, ...]  # dimensions that are cut together


def shrink(given: Given, still: Callable[[Given], bool]) -> Given:
    """Return the smallest tensors found for which ``still`` holds; it holds for ``given``."""
    search = _Search(given, still)
    while search.round():
        pass
    return search.given


class _Search:
    def __init__(self, given: Given, still: Callable[[Given], bool]) -> None:
        self.given = given
        self._still = still
        self._runs = 0
        self._end = time.perf_counter() + MOST_SECONDS

    def round(self) -> bool:
        """Try every group once, to its end; True if something was cut."""
        cut = False
        for group in _groups(self.given):
            while self._cut(group):
                cut = True
        return cut

    def _cut(self, group: Group) -> bool:
        sizes = {self.given[name].shape[dim] for name, dim in group}
        if len(sizes) != 1:  # cut in another group by now
            return False
        for kept in _parts(sizes.pop()):
            if self._runs >= MOST_RUNS or time.perf_counter() > self._end:
                return False
            self._runs += 1
            smaller = _taken(self.given, group, kept)
            if self._still(smaller):
                self.given = smaller
                return True
        return False


def _groups(given: Given) -> Iterator[Group]:
    """Yield groups of dimensions of one size, in the largest tensors first."""
    names = sorted(given, key=lambda name: -given[name].numel())
    dims = [(name, d) for name in names for d in range(given[name].dim())]
    sizes = {(name, d): given[name].shape[d] for name, d in dims if given[name].shape[d] > 1}
    for size in sorted(set(sizes.values()), reverse=True):
        same = [dim for dim, n in sizes.items() if n == size]
        yield from _aligned(given, same)
        yield from ((dim,) for dim in same)
        yield from (pair for pair in combinations(same, 2) if pair[0][0] != pair[1][0])


def _aligned(given: Given, same: list[Dim]) -> Iterator[Group]:
    """Yield dimensions at the same place, counted from the left and from the right."""
    for place in sorted({dim for _, dim in same}):
        yield tuple((name, dim) for name, dim in same if dim == place)
    for place in sorted({given[name].dim() - dim for name, dim in same}):
        yield tuple((name, dim) for name, dim in same if given[name].dim() - dim == place)


def _parts(size: int) -> Iterator[Tensor]:
    """Yield what may be kept of a dimension: a half, or all but a quarter."""
    if size < 2:
        return
    places, half = torch.arange(size), (size + 1) // 2
    yield places[:half]
    yield places[half:]
    quarter = size // 4
    if quarter:
        for first in range(0, size, quarter):
            kept = torch.cat([places[:first], places[first + quarter :]])
            if half < len(kept) < size:
                yield kept


def _taken(given: Given, group: Group, kept: Tensor) -> Given:
    smaller = dict(given)
    for name, dim in group:
        smaller[name] = smaller[name].index_select(dim, kept)
    return smaller
