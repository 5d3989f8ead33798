"""Range statistics of CPU tensors: integer views, pieces that fit the cache, kept buffers.

Sixteen-bit tensors are counted code by code (32768 of them), which is faster than counting
exponents: few hot counters would wait for each other. numpy reduces integers at the speed of a
copy and shares the tensors' memory.

Must not know modules or steps.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fp16doctor.record.binades import EMPTY, Layout, merge
from fp16doctor.schema.ranges import RangeStats

_TOP_FROM = 1 << 15  # elements from which the table of all upper halves of wider numbers pays
_CODES_PIECE = 1 << 20  # elements
_WIDE_PIECE = 1 << 18  # elements
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
            kept = self._kept[dtype, slot] = torch.empty(size, dtype=dtype, device="cpu")
        return kept[:size]


_buffers = _Buffers()


def measure(flat: Tensor, layout: Layout) -> RangeStats:
    """Return the statistics of a one-dimensional CPU tensor of ``layout.dtype``."""
    if len(flat) == 0:
        return EMPTY
    if flat.element_size() == 2:
        return _from_codes(_count_codes(flat.view(torch.int16)), layout)
    pieces = [_measure_piece(piece, layout) for piece in flat.split(_WIDE_PIECE)]
    return functools.reduce(merge, pieces)


# -- sixteen bits: every code counted ------------------------------------------------------------


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
        total = float(np.dot(table[inside].astype(np.float64), facts.values[inside]))
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


# -- wider: extremes first, counts where they say that there is something to count ------------


def _measure_piece(x: Tensor, layout: Layout) -> RangeStats:
    n, inf = len(x), layout.inf
    unsigned: Any = _UNSIGNED[x.element_size()]
    kept = _buffers.get(layout.integer, n)
    codes: Array = np.bitwise_and(
        x.view(layout.integer).numpy().view(unsigned),
        unsigned(layout.sign - 1),
        out=kept.numpy().view(unsigned),
    )
    high, low = int(codes.max()), int(codes.min())
    n_zero = n - int(np.count_nonzero(codes)) if low == 0 else 0
    n_inf = n_nan = 0
    if high >= inf:
        n_inf = int(np.count_nonzero(codes == inf))
        n_nan = int(np.count_nonzero(codes > inf))
        high = int(np.max(codes, where=codes < inf, initial=0))
    least = _least_nonzero(codes, layout) if low == 0 else low
    binades = _binades(codes, kept, layout)
    _split_field_zero(binades, codes, least, n_zero, layout)
    return RangeStats(
        numel=n,
        n_zero=n_zero,
        n_nan=n_nan,
        n_inf=n_inf,
        amax=layout.value(high),
        amin_nonzero=layout.value(min(least, inf)),
        exponents=layout.histogram(binades),
        sum_abs=_sum_abs(x, layout, finite=not n_inf and not n_nan),
    )


def _least_nonzero(codes: Array, layout: Layout) -> int:
    """Return the smallest code but 0, or that of inf: 0 - 1 wraps around to the largest."""
    scratch = _buffers.get(layout.integer, len(codes), slot=1).numpy().view(codes.dtype)
    least = int(np.subtract(codes, codes.dtype.type(1), out=scratch).min())
    return min(least + 1, layout.inf)


def _binades(codes: Array, kept: Tensor, layout: Layout) -> Array:
    """Return counts by binade, zeros and all subnormals still together in the place of zero."""
    fields = 1 << layout.exponent_bits
    if codes.itemsize == 4 and len(codes) >= _TOP_FROM:
        upper = slice(1, None, 2) if sys.byteorder == "little" else slice(0, None, 2)
        halves = kept.view(torch.int16)[upper]  # bfloat16 codes
        table = torch.bincount(halves, minlength=_N_CODES).numpy()
        counts = table.reshape(fields, -1).sum(axis=1)
    else:
        counts = torch.bincount(kept >> layout.mantissa, minlength=fields).numpy()
    binades = np.zeros(layout.n_binades, dtype=np.int64)
    binades[0], binades[layout.mantissa + 1 :] = counts[0], counts[1:]
    return binades


def _split_field_zero(
    binades: Array, codes: Array, least: int, n_zero: int, layout: Layout
) -> None:
    """Tell the subnormals from the zeros, and each other, by their leading bits."""
    limit = 1 << layout.mantissa
    if least < limit:
        subnormal = codes[(codes > 0) & (codes < limit)]
        leading = np.frexp(subnormal.astype(np.float64))[1]
        found = np.bincount(leading, minlength=layout.mantissa + 1)
        binades[1 : layout.mantissa + 1] = found[1:]
    binades[0] = n_zero


def _sum_abs(x: Tensor, layout: Layout, *, finite: bool) -> float:
    total = float(torch.abs(x, out=_buffers.get(x.dtype, len(x), slot=2)).sum()) if finite else 0.0
    if finite and math.isfinite(total):
        return total
    exact = x.double().abs_()  # beyond fp32, or with something to leave out
    return float(exact[exact.isfinite()].sum())
