"""Small CPU tensors wait in a buffer until there are enough of them to measure one after another.

A layer empties the caches, and statistics are a dozen calls: measured at once, a small tensor
costs several times what it costs in a row of others. A copy is one call, and it is needed, since
the script may change or free the tensor meanwhile.

Must not know modules or steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fp16doctor.record import own, range_cpu
from fp16doctor.record.binades import Layout
from fp16doctor.schema.ranges import RangeStats

LARGEST = 1 << 18  # elements; larger tensors are measured where they are
_SIZE = 1 << 20  # elements of the buffer of one dtype


@dataclass(slots=True)
class Staged:
    """Statistics that are not taken yet; ``known`` is called with them, once for each asker."""

    layout: Layout
    start: int
    numel: int
    stats: RangeStats | None = None
    known: list[Callable[[RangeStats], None]] = field(default_factory=list)

    def tell(self, known: Callable[[RangeStats], None]) -> None:
        """Call ``known`` with the statistics, now or when they are taken."""
        if self.stats is None:
            self.known.append(known)
        else:
            known(self.stats)


class Stage:
    """The buffers, one a dtype, and what lies in them."""

    def __init__(self) -> None:
        self._buffers: dict[torch.dtype, Tensor] = {}
        self._used: dict[torch.dtype, int] = {}
        self._waiting: list[Staged] = []

    def add(self, flat: Tensor, layout: Layout) -> Staged:
        """Copy a one-dimensional tensor of at most ``LARGEST`` elements."""
        dtype, size = layout.dtype, len(flat)
        start = self._used.get(dtype, 0)
        if start + size > _SIZE:
            self.flush()
            start = 0
        buffer = self._buffers.get(dtype)
        if buffer is None:
            buffer = self._buffers[dtype] = own.empty(_SIZE, dtype=dtype, device="cpu")
        buffer[start : start + size].copy_(flat)
        self._used[dtype] = start + size
        staged = Staged(layout, start, size)
        self._waiting.append(staged)
        return staged

    def flush(self) -> None:
        """Measure everything that waits."""
        waiting = self._waiting
        self.clear()
        for staged in waiting:
            buffer = self._buffers[staged.layout.dtype]
            part = buffer[staged.start : staged.start + staged.numel]
            staged.stats = range_cpu.measure(part, staged.layout)
            for known in staged.known:
                known(staged.stats)

    def clear(self) -> None:
        """Forget what waits."""
        self._waiting = []
        self._used.clear()
