"""Range statistics of CPU tensors: integer views, pieces that fit the cache, kept buffers.

Large sixteen-bit tensors are counted code by code (32768 of them), which says it all. Counting
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

from fp16doctor.record.binades import EMPTY, Layout, merge
from fp16doctor.schema.ranges import RangeStats

_CODES_FROM = 1 << 16  # 16-bit elements from which the table of all codes pays
_COARSE_BITS = 12  # upper bits of a magnitude code
_LANES = 4  # counters of each of these, used in turn: equal codes need not wait for each other
_CODES_PIECE = 1 << 20  # elements
_PIECE = 1 << 17  # elements
_N_CODES = 1 << 15
_UNSIGNED = {2: np.uint16, 4: np.uint32, 8: np.uint64}

Array = Any  # np.ndarray of integers


class _Buffers(threading.local):
    """Scratch memory of one thread: a fresh large block is mapped and faulted in at each use."""

    def __init__(self) -> None:
        self._kept: dict[tuple[torch.dtype, int], Tensor] = {}

    def get(self, dtype: torch.dtype, size: int, slot: int = 0) -> Tensor:
        kept = self._kept.get((dtype, slot))
        if kept is None or len(kept) < size:
            kept = self._kept[dtype, slot] = torch.empty(size, dtype=dtype, device="cpu")
        return kept[:size]


_buffers = _Buffers()


def measure(flat: Tensor, layout: Layout) -> RangeStats:
    """Return the statistics of a one-dimensional CPU tensor of ``layout.dtype``."""
    if len(flat) == 0:
        return EMPTY
    if flat.element_size() == 2 and len(flat) >= _CODES_FROM and _few_zeros(flat):
        return _from_codes(_count_codes(flat.view(torch.int16)), layout)
    pieces = [_measure_piece(piece, layout) for piece in flat.split(_PIECE)]
    return functools.reduce(merge, pieces)


# -- sixteen bits: every code counted ------------------------------------------------------------


def _few_zeros(flat: Tensor) -> bool:
    """Judged by a sample: behind a ReLU one counter would take half of all elements."""
    sample = flat[:: len(flat) // 64]
    return int(torch.count_nonzero(sample)) > len(sample) * 15 // 16


def _count_codes(codes: Tensor) -> Array:
    buffer = _buffers.get(torch.int16, min(len(codes), _CODES_PIECE))
    table: Tensor | None = None
    for piece in codes.split(_CODES_PIECE):
        magnitudes = torch.bitwise_and(piece, 0x7FFF, out=buffer[: len(piece)])
        counts = torch.bincount(magnitudes, minlength=_N_CODES)
        table = counts if table is None else table.add_(counts)
    assert table is not None
    return table.numpy()


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


# -- any width: coarse codes, extremes, and what these say is there to count ---------------------


def _measure_piece(x: Tensor, layout: Layout) -> RangeStats:
    n, inf = len(x), layout.inf
    kept = _buffers.get(layout.integer, n)
    torch.bitwise_and(x.view(layout.integer), layout.sign - 1, out=kept)
    codes = kept.numpy()
    low, high = (int(v) for v in torch.aminmax(kept))
    least = low if low else _least_nonzero(codes, layout)
    finite = high < inf
    n_inf = n_nan = 0
    if not finite:
        n_inf = int(np.count_nonzero(codes == inf))
        n_nan = int(np.count_nonzero(codes > inf))
        high = int(np.max(codes, where=codes < inf, initial=0))
    binades = _binades(kept, layout)
    if least < 1 << layout.mantissa:
        _split_subnormals(binades, codes, layout)
    return RangeStats(
        numel=n,
        n_zero=int(binades[0]),
        n_nan=n_nan,
        n_inf=n_inf,
        amax=layout.value(high),
        amin_nonzero=layout.value(min(least, inf)),
        exponents=layout.histogram(binades),
        sum_abs=_sum_abs(kept.view(layout.dtype), finite=finite),
    )


def _least_nonzero(codes: Array, layout: Layout) -> int:
    """Return the smallest code but 0, or that of inf: 0 - 1 wraps around to the largest."""
    unsigned: Any = _UNSIGNED[codes.itemsize]
    scratch = _buffers.get(layout.integer, len(codes), slot=1).numpy().view(unsigned)
    least = int(np.subtract(codes.view(unsigned), unsigned(1), out=scratch).min())
    return min(least + 1, layout.inf)


def _binades(kept: Tensor, layout: Layout) -> Array:
    """Return counts by binade, zeros and all subnormals still together in the place of zero.

    Counted are the upper bits of the codes, so many that few counters are hot and all of them
    lie in the first cache.
    """
    shift = layout.exponent_bits + layout.mantissa - _COARSE_BITS
    upper = torch.bitwise_right_shift(
        kept, shift, out=_buffers.get(layout.integer, len(kept), slot=1)
    )
    torch.bitwise_or(upper, _lanes(layout.integer)[: len(upper)], out=upper)
    counts = torch.bincount(upper, minlength=_LANES << _COARSE_BITS)
    fields = counts.view(_LANES, 1 << layout.exponent_bits, -1).sum((0, 2)).numpy()
    binades = np.zeros(layout.n_binades, dtype=np.int64)
    binades[0], binades[layout.mantissa + 1 :] = fields[0], fields[1:]
    return binades


@functools.cache
def _lanes(integer: torch.dtype) -> Tensor:
    turns = torch.arange(_PIECE, device="cpu") % _LANES
    return (turns << _COARSE_BITS).to(integer)


def _split_subnormals(binades: Array, codes: Array, layout: Layout) -> None:
    """Tell the subnormals from the zeros, and each other, by their leading bits."""
    subnormal = codes[(codes > 0) & (codes < 1 << layout.mantissa)]
    leading = np.frexp(subnormal.astype(np.float64))[1]
    found = np.bincount(leading, minlength=layout.mantissa + 1)
    binades[1 : layout.mantissa + 1] = found[1:]
    binades[0] -= len(subnormal)


def _sum_abs(magnitudes: Tensor, *, finite: bool) -> float:
    wide = torch.float64 if magnitudes.dtype is torch.float64 else torch.float32
    total = float(magnitudes.sum(dtype=wide)) if finite else math.inf
    if math.isfinite(total):
        return total
    exact = magnitudes.double()  # beyond fp32, or with something to leave out
    return float(exact[exact.isfinite()].sum())
