"""Reads a checkpoint without a model, and counts what each tensor would lose in a format.

Runs no code of the file: pickles are loaded with ``weights_only``. Must not judge.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fp16doctor.errors import CheckpointError, Fp16DoctorError, UsageError
from fp16doctor.formats import get_format
from fp16doctor.formats.rounding import round_to
from fp16doctor.schema.checkpoint import Fit, StoredTensor, StoredWeights
from fp16doctor.schema.diagnosis import FormatLimits

if TYPE_CHECKING:
    from torch import Tensor

    from fp16doctor.formats import NumberFormat

_CHUNK = 1 << 20  # elements rounded at a time: round_to makes several fp64 copies


def read_checkpoint(path: Path, names: Sequence[str]) -> StoredWeights:
    """Measure every floating-point tensor of a ``torch.save`` or safetensors file, on the CPU.

    Args:
        path: the file.
        names: formats to cast to, such as "fp16".

    Raises:
        UsageError: unknown-format.
        CheckpointError: unreadable-checkpoint, unsafe-checkpoint (the pickle needs code),
            or empty-checkpoint.
    """
    formats = [_format(name) for name in dict.fromkeys(names)]
    measured: list[StoredTensor] = []
    others = 0
    for name, tensor in _tensors(path):
        if tensor.is_floating_point() and tensor.layout == torch.strided and not tensor.is_meta:
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


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    yield from _safetensors(path) if _is_safetensors(path) else _walk("", _unpickled(path), set())


def _is_safetensors(path: Path) -> bool:
    """By content: eight bytes of length, then a JSON object."""
    try:
        with path.open("rb") as stream:
            head = stream.read(9)
    except OSError as error:
        raise _unreadable(path, error) from error
    return len(head) == 9 and head[8:] == b"{" and not head.startswith((b"PK", b"\x80"))


def _safetensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as stored:
            for name in stored.keys():  # noqa: SIM118 - not a dict
                yield name, stored.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from error


def _unpickled(path: Path) -> object:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if not zipfile.is_zipfile(path) and b"torch" not in path.read_bytes()[:4096]:
            raise _unreadable(path, error) from error
        raise CheckpointError(
            f"refused: '{path}' holds objects other than tensors and containers, and loading it "
            f"would run code ({_needed(error)}); save model.state_dict() and name that file",
            "unsafe-checkpoint",
        ) from error
    except (OSError, RuntimeError, EOFError, ValueError, LookupError) as error:
        raise _unreadable(path, error) from error


def _needed(error: Exception) -> str:
    """The global that the pickle asks for, as torch's message names it."""
    text = " ".join(str(error).split())
    start = text.find("GLOBAL ")
    return text[start:].split(" was not")[0] if start >= 0 else text[:80]


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    # What the unpickler's own lookups raise on any other file says nothing to a reader.
    plain = isinstance(error, (LookupError, pickle.UnpicklingError, EOFError))
    said = "no checkpoint" if plain else getattr(error, "strerror", None) or str(error)
    line = said.strip().partition("\n")[0][:160]
    return CheckpointError(
        f"'{path}' could not be read as weights: {line}; name a file of torch.save or safetensors",
        "unreadable-checkpoint",
    )


def _walk(name: str, node: object, seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    """Tensors of nested containers, each object once."""
    if isinstance(node, torch.Tensor):
        yield name or "tensor", node.detach()
        return
    if id(node) in seen:
        return
    if isinstance(node, Mapping):
        children = [(str(key), value) for key, value in node.items()]
    elif isinstance(node, (list, tuple)):
        children = [(str(i), value) for i, value in enumerate(node)]
    else:
        return
    seen.add(id(node))
    for key, value in children:
        yield from _walk(f"{name}.{key}" if name else key, value, seen)


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
