"""Range statistics of CPU tensors: integer views, pieces that fit the cache, kept buffers.

Sixteen-bit tensors are counted code by code (32768 of them), which says it all. Counting
bare exponents would be slower: few hot counters wait for each other. numpy reduces integers at the
speed of a copy and shares the tensors' memory.

Must not know modules or steps.
"""

from __future__ import annotations

import functools
import math
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fp16doctor.record import own
from fp16doctor.record.binades import EMPTY, Layout
from fp16doctor.schema.ranges import RangeStats

_SPREAD_FROM = 1 << 13  # 16-bit elements from which it is asked whether many are zero
_COARSE_BITS = 12  # upper bits of a magnitude code
_LANES = 4  # counters of each of these, used in turn: equal codes need not wait for each other
_CODES_PIECE = 1 << 19  # elements
_PIECE = 1 << 18  # elements
_N_CODES = 1 << 15
_UNSIGNED = {4: np.uint32, 8: np.uint64}

Array = Any  # np.ndarray of integers


class _Buffers(threading.local):
    """Scratch memory of one thread: a fresh large block is mapped and faulted in at each use."""

    def __init__(self) -> None:
        self._kept: dict[tuple[torch.dtype, int], Tensor] = {}

    def get(self, dtype: torch.dtype, size: int, slot: int = 0) -> Tensor:
        kept = self._kept.get((dtype, slot))
        if kept is None or len(kept) < size:
            kept = self._kept[dtype, slot] = own.empty(size, dtype=dtype, device="cpu")
        return kept[:size]


_buffers = _Buffers()


def measure(flat: Tensor, layout: Layout) -> RangeStats:
    """Return the statistics of a one-dimensional CPU tensor of ``layout.dtype``."""
    if len(flat) == 0:
        return EMPTY
    if flat.element_size() == 2:
        return _from_codes(_count_codes(flat.view(torch.int16), layout), layout)
    return _by_pieces(flat, layout)


# -- sixteen bits: every code counted ------------------------------------------------------------


def _count_codes(codes: Tensor, layout: Layout) -> Array:
    """Return the counts of all magnitude codes."""
    # fp16 tensors often hold its smallest subnormals themselves
    spread = layout.exponent_bits == 8 and len(codes) >= _SPREAD_FROM and _many_zeros(codes)
    table: Tensor | None = None
    for piece in codes.split(_CODES_PIECE):
        buffer = _buffers.get(torch.int16, len(piece))
        magnitudes = own.bitwise_and(piece, 0x7FFF, out=buffer)
        counts = _count_spread(magnitudes) if spread else None
        if counts is None:
            counts = own.bincount(magnitudes, minlength=_N_CODES)
        table = counts if table is None else table.add_(counts)
    assert table is not None, "called with an element"
    return table.numpy()


def _many_zeros(codes: Tensor) -> bool:
    """Judged by a sample: behind a ReLU one counter takes half of all elements."""
    sample = codes[:: len(codes) // 64]
    return int(own.count_nonzero(sample)) < len(sample) * 15 // 16


def _count_spread(magnitudes: Tensor) -> Tensor | None:
    """Count with zeros spread over the codes 0 to 3, so that they need not wait for each other.

    None where the tensor has the codes 1 to 3 itself: the smallest subnormals, as good as never.
    """
    nonzero = int(np.count_nonzero(magnitudes.numpy()))
    spread = _buffers.get(torch.int16, len(magnitudes), slot=1)
    own.maximum(magnitudes, _lanes(torch.int16)[: len(magnitudes)], out=spread)
    counts = own.bincount(spread, minlength=_N_CODES)
    n_zero = len(magnitudes) - nonzero
    if int(counts[:_LANES].sum()) != n_zero:
        return None
    counts[:_LANES] = 0
    counts[0] = n_zero
    return counts


def _from_codes(table: Array, layout: Layout) -> RangeStats:
    """Return what the counts of all magnitude codes say."""
    facts = _table_facts(layout)
    binades = np.add.reduceat(table, facts.starts)
    n_zero, n_special = int(binades[0]), int(binades[-1])
    n_inf = int(table[layout.inf])
    occupied = np.flatnonzero(binades[1:-1])
    amax, amin, total = 0.0, math.inf, 0.0
    if len(occupied):
        first, last = int(facts.starts[occupied[0] + 1]), int(facts.starts[occupied[-1] + 2])
        codes = np.flatnonzero(table[first:last])
        low, high = first + int(codes[0]), first + int(codes[-1])
        amin, amax = layout.value(low), layout.value(high)
        inside = slice(low, high + 1)
        total = float((table[inside] * facts.values[inside]).sum())  # np.dot would start threads
    return RangeStats(
        numel=int(binades.sum()),
        n_zero=n_zero,
        n_nan=n_special - n_inf,
        n_inf=n_inf,
        amax=amax,
        amin_nonzero=amin,
        exponents=layout.histogram(binades),
        sum_abs=total,
    )


@dataclass(frozen=True, slots=True)
class _TableFacts:
    starts: Array  # first code of each binade
    values: Array  # magnitude of each code, 0 for inf and NaN


@functools.cache
def _table_facts(layout: Layout) -> _TableFacts:
    m = layout.mantissa
    starts = [0, *(1 << k for k in range(m)), *range(1 << m, _N_CODES, 1 << m)]
    codes = range(layout.inf)
    values = np.zeros(_N_CODES)
    values[: layout.inf] = [layout.value(code) for code in codes]
    return _TableFacts(np.array(starts), values)


# -- wider: coarse codes, extremes, and what these say is there to count ---------------------


def _by_pieces(flat: Tensor, layout: Layout) -> RangeStats:
    sums = _Sums(layout)
    for piece in flat.split(_PIECE):
        sums.add(piece)
    return sums.stats(len(flat))


class _Sums:
    """What the pieces of one tensor add up to."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._counts: Tensor | None = None  # by lane and upper bits
        self._subnormals: Array = 0  # by leading bit
        self._least, self._high = layout.inf, 0
        self._n_inf = self._n_nan = 0
        self._total = 0.0

    def add(self, x: Tensor) -> None:
        """Take one piece."""
        layout = self._layout
        kept = _buffers.get(layout.integer, len(x))
        own.bitwise_and(x.view(layout.integer), layout.sign - 1, out=kept)
        codes = kept.numpy()
        low, high = (int(v) for v in own.aminmax(kept))
        least = low if low else _least_nonzero(codes, layout)
        finite = high < layout.inf
        if not finite:
            high = self._add_special(codes)
        if least < 1 << layout.mantissa:
            self._subnormals = self._subnormals + _subnormals(codes, layout)
        self._least, self._high = min(self._least, least), max(self._high, high)
        self._total += _sum_abs(kept.view(layout.dtype), finite=finite)
        counts = _count_upper_bits(kept, layout)
        self._counts = counts if self._counts is None else self._counts.add_(counts)

    def _add_special(self, codes: Array) -> int:
        """Count infs and NaNs; return the largest code below them."""
        inf = self._layout.inf
        self._n_inf += int(np.count_nonzero(codes == inf))
        self._n_nan += int(np.count_nonzero(codes > inf))
        return int(np.max(codes, where=codes < inf, initial=0))

    def stats(self, numel: int) -> RangeStats:
        """Return the statistics of all pieces."""
        layout = self._layout
        assert self._counts is not None, "called after add"
        lanes = self._counts.view(_LANES, -1).sum(0)
        fields = lanes.view(1 << layout.exponent_bits, -1).sum(1).numpy()
        binades = np.zeros(layout.n_binades, dtype=np.int64)
        binades[1 : layout.mantissa + 1] = self._subnormals
        binades[0] = fields[0] - binades[1 : layout.mantissa + 1].sum()
        binades[layout.mantissa + 1 :] = fields[1:]
        return RangeStats(
            numel=numel,
            n_zero=int(binades[0]),
            n_nan=self._n_nan,
            n_inf=self._n_inf,
            amax=layout.value(self._high),
            amin_nonzero=layout.value(self._least),
            exponents=layout.histogram(binades),
            sum_abs=self._total,
        )


def _least_nonzero(codes: Array, layout: Layout) -> int:
    """Return the smallest code but 0, or that of inf: 0 - 1 wraps around to the largest."""
    unsigned: Any = _UNSIGNED[codes.itemsize]
    scratch = _buffers.get(layout.integer, len(codes), slot=1).numpy().view(unsigned)
    least = int(np.subtract(codes.view(unsigned), unsigned(1), out=scratch).min())
    return min(least + 1, layout.inf)


def _count_upper_bits(kept: Tensor, layout: Layout) -> Tensor:
    """Count the upper bits of codes: so many that few are hot, few enough for the first cache."""
    shift = layout.exponent_bits + layout.mantissa - _COARSE_BITS
    upper = _buffers.get(layout.integer, len(kept), slot=1)
    own.bitwise_right_shift(kept, shift, out=upper)
    own.bitwise_or(upper, _upper_lanes(layout.integer)[: len(upper)], out=upper)
    return own.bincount(upper, minlength=_LANES << _COARSE_BITS)


@functools.cache
def _lanes(integer: torch.dtype) -> Tensor:
    return (own.arange(_CODES_PIECE, device="cpu") % _LANES).to(integer)


@functools.cache
def _upper_lanes(integer: torch.dtype) -> Tensor:
    return _lanes(integer)[:_PIECE] << _COARSE_BITS


def _subnormals(codes: Array, layout: Layout) -> Array:
    """Count the subnormals by their leading bits."""
    found = codes[(codes > 0) & (codes < 1 << layout.mantissa)]
    leading = np.frexp(found.astype(np.float64))[1]
    return np.bincount(leading, minlength=layout.mantissa + 1)[1:]


def _sum_abs(magnitudes: Tensor, *, finite: bool) -> float:
    wide = torch.float64 if magnitudes.dtype is torch.float64 else torch.float32
    total = float(magnitudes.sum(dtype=wide)) if finite else math.inf
    if math.isfinite(total):
        return total
    exact = magnitudes.double()  # beyond fp32, or with something to leave out
    return float(exact[exact.isfinite()].sum())
