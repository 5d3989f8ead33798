"""Counts, without a model, what each tensor of a checkpoint would lose in a format.

Must not know how a file is read (``stored_tensors``). Must not judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fp16doctor.errors import CheckpointError, Fp16DoctorError, UsageError
from fp16doctor.formats import get_format
from fp16doctor.formats.rounding import round_to
from fp16doctor.record.stored_tensors import stored_tensors
from fp16doctor.schema.checkpoint import Fit, StoredTensor, StoredWeights
from fp16doctor.schema.diagnosis import FormatLimits

if TYPE_CHECKING:
    from torch import Tensor

    from fp16doctor.formats import NumberFormat

_CHUNK = 1 << 20  # elements rounded at a time: round_to makes several fp64 copies


def read_checkpoint(path: Path, names: Sequence[str]) -> StoredWeights:
    """Measure every floating-point tensor of a ``torch.save`` or safetensors file, on the CPU.

    Args:
        path: the file, an index of a file in several parts, or a folder that holds one.
        names: formats to cast to, such as "fp16".

    Raises:
        UsageError: unknown-format.
        CheckpointError: unreadable-checkpoint, unsafe-checkpoint (the pickle needs code),
            or empty-checkpoint.
    """
    formats = [_format(name) for name in dict.fromkeys(names)]
    measured: list[StoredTensor] = []
    others = 0
    for name, tensor in stored_tensors(path):
        if _is_judged(tensor):
            measured.append(_measure(name, tensor, formats))
        else:
            others += 1
    if not measured and not others:
        raise CheckpointError(
            f"'{path}' was read and holds no tensor; name a file of torch.save or safetensors",
            "empty-checkpoint",
        )
    return StoredWeights(str(path), tuple(map(_limits, formats)), tuple(measured), others)


def _format(name: str) -> NumberFormat:
    try:
        return get_format(name)
    except Fp16DoctorError as error:
        raise UsageError(error.message, error.slug) from error


def _limits(fmt: NumberFormat) -> FormatLimits:
    normal, least = fmt.smallest_normal, fmt.smallest_subnormal
    return FormatLimits(fmt.name, fmt.max, fmt.overflow_threshold, normal, least, fmt.eps)


def _is_judged(tensor: Tensor) -> bool:
    """Whether it holds floating-point numbers, one in each element."""
    plain = tensor.is_floating_point() and tensor.layout == torch.strided and not tensor.is_meta
    if plain:
        try:
            tensor.reshape(-1)[:1].to(torch.float64)
        except (RuntimeError, NotImplementedError):  # several packed into a byte
            return False
    return plain


def _measure(name: str, tensor: Tensor, formats: Sequence[NumberFormat]) -> StoredTensor:
    values = tensor.reshape(-1)
    totals = {f.name: [0, 0, 0] for f in formats}
    nonfinite, amax, smallest = 0, 0.0, float("inf")
    for start in range(0, values.numel(), _CHUNK):
        chunk = values[start : start + _CHUNK].to(torch.float64)
        finite = chunk[torch.isfinite(chunk)]
        nonfinite += chunk.numel() - finite.numel()
        used = finite[finite != 0]
        if used.numel():
            sizes = used.abs()
            amax, smallest = max(amax, sizes.max().item()), min(smallest, sizes.min().item())
            for fmt in formats:
                _count(used, fmt, totals[fmt.name])
    fits = tuple(Fit(f.name, *totals[f.name]) for f in formats)
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = tuple(tensor.shape)
    return StoredTensor(name, shape, dtype, values.numel(), nonfinite, amax, smallest, fits)


def _count(used: Tensor, fmt: NumberFormat, totals: list[int]) -> None:
    """Add the counts of one chunk (fp64, finite, no zeros); saturation counts as overflow."""
    sizes = round_to(used, fmt).abs()
    over = torch.isinf(sizes) if fmt.has_inf else used.abs() >= fmt.overflow_threshold
    totals[0] += int(over.sum())
    totals[1] += int(((sizes > 0) & (sizes < fmt.smallest_normal)).sum())
    totals[2] += int((sizes == 0).sum())
