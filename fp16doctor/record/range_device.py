"""Range statistics of tensors on an accelerator: torch ops only, and nothing is read back.

Every op here takes the same time whatever the values are, and none of them waits for the device
(``torch.bincount`` would: it reads the largest value). What is read at the end of the step is one
vector of fp64 numbers, in which counts below 2^53 are exact.

Must not know modules or steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fp16doctor.record import own
from fp16doctor.record.binades import Layout
from fp16doctor.schema.ranges import RangeStats

_PIECE = 1 << 22  # elements; a piece takes about 30 bytes an element of scratch memory
_LANES = 64  # counters a binade, so that equal exponents do not wait for each other


def measure(flat: Tensor, layout: Layout) -> Tensor:
    """Return the statistics of a one-dimensional tensor as one fp64 vector, for ``decode``.

    The tensor has at least one element.
    """
    pieces = [_measure_piece(piece, layout) for piece in flat.split(_PIECE)]
    table = own.stack(pieces)
    last = layout.n_binades
    return own.cat(
        [
            table[:, : last + 1].sum(0),
            table[:, last + 1].max().reshape(1),
            table[:, last + 2].min().reshape(1),
            table[:, last + 3].sum().reshape(1),
        ]
    )


def decode(numbers: list[float], layout: Layout, numel: int) -> RangeStats:
    """Return the statistics that a vector of ``measure`` holds."""
    *counts, n_inf, amax, amin, total = numbers
    return RangeStats(
        numel=numel,
        n_zero=int(counts[0]),
        n_nan=int(counts[-1] - n_inf),
        n_inf=int(n_inf),
        amax=amax,
        amin_nonzero=amin,
        exponents=layout.histogram(counts),
        sum_abs=total,
    )


def _measure_piece(x: Tensor, layout: Layout) -> Tensor:
    """Return counts by binade, then n_inf, amax, amin_nonzero, sum_abs."""
    codes = x.view(layout.integer) & (layout.sign - 1)
    finite = codes < layout.inf
    counts = _counts(codes, layout)
    zero = own.zeros((), dtype=layout.integer, device=x.device)
    top = own.where(finite, codes, zero).max()
    rest = own.where(codes > 0, codes, zero + layout.inf).min().clamp(max=layout.inf)
    extremes = own.stack([top, rest]).view(layout.dtype).double()
    total = own.where(finite, x, zero.view(layout.dtype)).abs().sum(dtype=torch.float64)
    n_inf = (codes == layout.inf).sum()
    return own.cat(
        [counts.double(), n_inf.double().reshape(1), extremes, total.reshape(1)],
    )


def _counts(codes: Tensor, layout: Layout) -> Tensor:
    """Return the number of codes in each binade."""
    index = _binade_of(codes, layout).long() * _LANES
    index += own.arange(index.numel(), device=codes.device) % _LANES
    table = own.zeros(layout.n_binades * _LANES, dtype=torch.int64, device=codes.device)
    ones = own.ones(1, dtype=torch.int64, device=codes.device).expand(index.shape)
    return table.scatter_add_(0, index, ones).view(layout.n_binades, _LANES).sum(1)


def _binade_of(codes: Tensor, layout: Layout) -> Tensor:
    """Return each code's binade; a subnormal's leading bit is its exponent as a float."""
    wide = layout.integer == torch.int64
    exact, bits, shift, bias = (
        (torch.float64, torch.int64, 52, 1022) if wide else (torch.float32, torch.int32, 23, 126)
    )
    small = (codes.to(exact).view(bits) >> shift).sub_(bias).clamp_(min=0)
    return own.where(
        codes < (1 << layout.mantissa), small, (codes >> layout.mantissa).to(bits) + layout.mantissa
    )
