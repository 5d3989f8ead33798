"""Bytes under names in one safetensors file, with a checksum over all of them.

Must not know tapes.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import NoReturn

import safetensors
import torch
from torch import Tensor

from fp16doctor.errors import BundleError
from fp16doctor.record.bundle.saved import save

FORMAT = "fp16doctor-bundle"
VERSION = 1
DOCUMENT = "document"
_LENGTH = 8  # bytes in front of the header: its size, little-endian
_MOST_HEADER = 100_000_000  # safetensors' own limit
_AGAIN = "write it again with `fp16doctor scan --save-bundle`"


def pack(path: Path, tensors: dict[str, Tensor]) -> int:
    """Write 1-D uint8 tensors on the CPU; the file appears whole or not at all.

    Returns its size in bytes. Raises BundleError bundle-not-written.
    """
    about = {"format": FORMAT, "version": str(VERSION), "sha256": _digest(tensors)}
    neighbour = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        save(tensors, neighbour, about)
        os.replace(neighbour, path)
        return path.stat().st_size
    except (OSError, safetensors.SafetensorError) as error:
        neighbour.unlink(missing_ok=True)
        raise BundleError(
            f"writing the bundle '{path}' failed: {getattr(error, 'strerror', None) or error};"
            " name a file in a folder that exists and is writable",
            "bundle-not-written",
        ) from error


def unpack(path: Path) -> dict[str, Tensor]:
    """Return what ``pack`` wrote, each tensor in memory of its own.

    Raises BundleError: the file cannot be read, is truncated, is no bundle, is of another version,
    or its bytes are not those that were written.
    """
    _check_sizes(path)
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            about = file.metadata() or {}
            _check_about(path, about)
            # Copies, because a mapped file is not aligned as torch's own memory is, and kernels
            # sum in another order there.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError, ValueError) as error:
        refuse(
            path, f"its header does not fit its bytes ({_brief(error)}); {_AGAIN}", "not-a-bundle"
        )
    if any(t.dtype is not torch.uint8 or t.dim() != 1 for t in tensors.values()):
        refuse(path, f"it holds tensors that are no plain bytes; {_AGAIN}", "not-a-bundle")
    if _digest(tensors) != about.get("sha256"):
        refuse(path, f"its bytes do not have the checksum they were written with; {_AGAIN}",
               "damaged-bundle")  # fmt: skip
    return tensors


def refuse(path: Path, met: str, slug: str) -> NoReturn:
    """Raise the error of a file that cannot be read."""
    raise BundleError(f"cannot read a bundle from '{path}': {met}", slug)


def _check_sizes(path: Path) -> None:
    """Hold what the file claims against what it has, before anything is allocated."""
    try:
        with open(path, "rb") as stream:
            head = stream.read(_LENGTH)
            size = os.fstat(stream.fileno()).st_size
            claimed = int.from_bytes(head, "little")
            header = stream.read(claimed) if claimed <= min(_MOST_HEADER, size) else b""
    except OSError as error:
        refuse(
            path, f"{error.strerror}; name a file that scan --save-bundle wrote", "unreadable-file"
        )
    if len(head) < _LENGTH:
        refuse(path, f"it has {size} bytes and no header; {_AGAIN}", "truncated-bundle")
    if claimed > _MOST_HEADER:
        refuse(path, f"it is no safetensors file (a header of {claimed} bytes); {_AGAIN}",
               "not-a-bundle")  # fmt: skip
    if claimed > size - _LENGTH:
        refuse(path, f"it ends early: its header has {claimed} bytes, the whole file {size};"
               f" {_AGAIN}", "truncated-bundle")  # fmt: skip
    end = _end_of_tensors(header)
    if end > size - _LENGTH - claimed:
        refuse(path, f"it ends early: its tensors have {end} bytes, the whole file {size};"
               f" {_AGAIN}", "truncated-bundle")  # fmt: skip


def _end_of_tensors(header: bytes) -> int:
    """Return how many bytes the header says follow it, 0 where it cannot be read."""
    try:
        entries = json.loads(header).items()
        return max(int(e["data_offsets"][1]) for name, e in entries if name != "__metadata__")
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return 0  # safetensors says what is wrong with it


def _check_about(path: Path, about: dict[str, str]) -> None:
    if about.get("format") != FORMAT:
        refuse(path, f"it is a safetensors file, but no bundle; {_AGAIN}", "not-a-bundle")
    if about.get("version") != str(VERSION):
        met = f"its version is {about.get('version', 'not told')[:20]}, and this fp16doctor reads"
        refuse(path, f"{met} {VERSION}; use the fp16doctor that wrote it", "bundle-version")


def _digest(tensors: dict[str, Tensor]) -> str:
    whole = hashlib.sha256()
    for name in sorted(tensors):
        data = tensors[name]
        whole.update(f"{len(name.encode())} {name} {data.numel()} ".encode())
        whole.update(data.contiguous().numpy().data)
    return whole.hexdigest()


def _brief(error: Exception) -> str:
    return str(error).splitlines()[0][:160] if str(error) else type(error).__name__
