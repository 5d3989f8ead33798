"""From any tensor to its RangeStats, or to what must be read from its device to know them.

Unpacks what is not a plain strided tensor of a known floating dtype: complex and sparse tensors,
8-bit floats, views that are not contiguous. Must not know modules or steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fp16doctor.record import own, range_cpu, range_device
from fp16doctor.record.binades import LAYOUTS, Layout
from fp16doctor.record.range_stage import LARGEST, Stage, Staged
from fp16doctor.record.read_back import read_back
from fp16doctor.schema.ranges import RangeStats

_PLAIN = (Tensor, torch.nn.Parameter)
_OWN_DISPATCH = Tensor.__torch_dispatch__


@dataclass(slots=True)
class PendingStats:
    """Statistics that still lie on a device."""

    vector: Tensor  # fp64
    layout: Layout
    numel: int  # elements measured
    absent: int  # zeros that a sparse tensor does not store

    def finish(self, numbers: list[float]) -> RangeStats:
        """Return the statistics, once ``vector`` was read."""
        return _with_zeros(range_device.decode(numbers, self.layout, self.numel), self.absent)


def plain(tensor: Tensor) -> Tensor | None:
    """Return the tensor detached, as real numbers of a known layout, or None where it has none.

    Integers, quantized and wrapped tensors (DTensor, fake tensors) and those on ``meta`` have no
    range here. A sparse tensor gives its stored values.
    """
    known = tensor.dtype in LAYOUTS and type(tensor) in _PLAIN
    if known and tensor.layout is torch.strided and not (tensor.is_neg() or tensor.is_meta):
        return tensor.detach()
    return _unpacked(tensor)


def _unpacked(tensor: Tensor) -> Tensor | None:
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.device.type == "meta":
        return None
    if type(tensor).__torch_dispatch__ is not _OWN_DISPATCH or tensor.is_nested:
        return None
    with torch._C.DisableTorchFunctionSubclass():
        x = tensor.detach()
        if type(x) not in _PLAIN:
            x = x.as_subclass(Tensor)
        if x.layout is torch.sparse_coo:
            x = x.coalesce().values()
        elif x.layout is not torch.strided:
            x = x.values() if "sparse" in str(x.layout) else x.to_dense()
        if x.is_complex():
            x = own.view_as_real(x.resolve_conj())
        if x.is_neg():
            x = x.resolve_neg()
        return x if x.dtype in LAYOUTS else x.to(torch.float32)  # exact for 8-bit floats


@dataclass(slots=True)
class PendingScreen:
    """Smallest and largest value, unread: 0-d tensors, both NaN if there is one.

    One op a tensor, on the CPU as well: after a layer has emptied the caches, what each further
    call costs is more than what the elements cost.
    """

    low: Tensor
    high: Tensor

    @staticmethod
    def finish(low: float, high: float) -> float:
        """Return the largest magnitude, inf or NaN where there is one."""
        return high if high != high else max(-low, high)


def screen(tensor: Tensor) -> PendingScreen | None:
    """Return what is to be read to know the largest magnitude; None without any elements."""
    x = plain(tensor)
    if x is None or x.numel() == 0:
        return None
    return PendingScreen(*own.aminmax(x))


def measure(
    tensor: Tensor, stage: Stage | None = None
) -> RangeStats | PendingStats | Staged | None:
    """Return the statistics of a CPU tensor, or what is to be read for those of another.

    With a stage a small CPU tensor is only copied there.
    """
    x = plain(tensor)
    if x is None:
        return None
    layout = LAYOUTS[x.dtype]
    flat = _flat(x)
    absent = _absent(tensor, x)
    if len(flat) and flat.device.type != "cpu":
        return PendingStats(range_device.measure(flat, layout), layout, len(flat), absent)
    if stage is not None and not absent and 0 < len(flat) <= LARGEST:
        return stage.add(flat, layout)
    stats = range_cpu.measure(flat, layout)
    return _with_zeros(stats, absent) if absent else stats


def range_stats(tensor: Tensor) -> RangeStats | None:
    """Return the statistics of a tensor at once; on an accelerator this waits for it.

    The real and imaginary parts of complex numbers count as two elements.
    """
    found = measure(tensor)
    if isinstance(found, PendingStats):
        return found.finish(read_back([found.vector])[0])
    assert not isinstance(found, Staged), "no stage was given"
    return found


def _flat(x: Tensor) -> Tensor:
    """Return all elements in one dimension, in memory order where nothing need be copied."""
    if x.is_contiguous():
        return x.view(-1)
    if _dense(x):
        return x.as_strided((x.numel(),), (1,))
    return x.reshape(-1)


def _dense(x: Tensor) -> bool:
    """Whether the elements fill a block of memory, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _absent(tensor: Any, x: Tensor) -> int:
    if tensor.layout is torch.strided:
        return 0
    parts = 2 if tensor.is_complex() else 1
    whole: int = math.prod(tensor.shape) * parts
    return max(whole - x.numel(), 0)


def _with_zeros(stats: RangeStats, absent: int) -> RangeStats:
    return replace(stats, numel=stats.numel + absent, n_zero=stats.n_zero + absent)
