"""The storages of one replay: taped references in, live tensors out.

A storage is kept in the policy's format; a reference with the recorded dtype is rebuilt on it
with the same geometry, one with another dtype (a bit view) on a copy in the recorded format.

Must not know ops.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fp16doctor.errors import ReplayError
from fp16doctor.schema.policy import PrecisionPolicy
from fp16doctor.schema.tape import Tape, TensorRef


@cache
def torch_dtype(name: str) -> torch.dtype:
    """Return ``torch.float16`` for ``"float16"``."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


@dataclass(slots=True)
class Live:
    """A storage during a replay."""

    storage: Any  # torch.UntypedStorage
    recorded: torch.dtype  # dtype of the reference that defined it
    live: torch.dtype  # dtype its bytes now have


class Environment:
    """Storages by id."""

    def __init__(self, tape: Tape, policy: PrecisionPolicy) -> None:
        self._tape = tape
        self._widen = {torch_dtype(a): torch_dtype(b) for a, b in policy.widen}
        self._live: dict[int, Live] = {}
        self._written = {n for op in tape.ops for n in op.mutates}

    @property
    def identity(self) -> bool:
        """No format is changed."""
        return not self._widen

    def wide(self, dtype: torch.dtype) -> torch.dtype:
        """Return the format that stands for a recorded one."""
        return self._widen.get(dtype, dtype)

    def has(self, number: int) -> bool:
        """The storage is live, or a leaf."""
        return number in self._live or number in self._tape.leaves

    def tensor(self, ref: TensorRef) -> Tensor:
        """Return the tensor a reference stands for; writing to it writes to the storage."""
        live = self._live.get(ref.storage)
        dtype = torch_dtype(ref.dtype)
        if live is None:
            live = self._load(ref.storage, dtype)
        if dtype is live.recorded:
            return _view(live.storage, live.live, ref)
        return self._other_view(live, dtype, ref)

    def override(self, number: int, value: Tensor, ref: TensorRef, recorded: torch.dtype) -> None:
        """Give a leaf other values than the recorded ones; ``value`` has the shape of ``ref``."""
        flat = torch.zeros(_span(ref), dtype=value.dtype, device=value.device)
        _view(flat.untyped_storage(), value.dtype, ref).copy_(value)
        self._live[number] = Live(flat.untyped_storage(), recorded, value.dtype)

    def widened_in_place(self, ref: TensorRef, dtype: torch.dtype) -> Tensor:
        """Keep a storage in a wider format from now on and return the tensor in it.

        A leaf stays in its format, since the script stores it there: the caller gets it as it is.
        """
        value = self.tensor(ref)
        live = self._live[ref.storage]
        if ref.storage in self._tape.leaves or not live.live.is_floating_point:
            return value
        if live.live.itemsize < dtype.itemsize:
            flat = torch.empty(0, dtype=live.live, device=live.storage.device)
            storage = flat.set_(live.storage).to(dtype).untyped_storage()
            self._live[ref.storage] = Live(storage, live.recorded, dtype)
        return self.tensor(ref)

    def recorded_form(self, ref: TensorRef) -> Tensor:
        """Return a copy in the recorded format."""
        return self.tensor(ref).to(torch_dtype(ref.dtype), copy=True)

    def _other_view(self, live: Live, dtype: torch.dtype, ref: TensorRef) -> Tensor:
        """Rebuild a bit view; on a widened storage from a copy rounded to the recorded format."""
        mapped = self.wide(dtype)
        if live.live is live.recorded and mapped is dtype:
            return _view(live.storage, dtype, ref)
        if _ratio(live.live, live.recorded) == _ratio(mapped, dtype) and (
            live.live is not live.recorded and mapped is not dtype
        ):
            return _view(live.storage, mapped, ref)  # complex as pairs of reals
        flat = torch.empty(0, dtype=live.live, device=live.storage.device).set_(live.storage)
        return _view(flat.to(live.recorded).untyped_storage(), dtype, ref).to(mapped)

    def _load(self, number: int, dtype: torch.dtype) -> Live:
        leaf = self._tape.leaves.get(number)
        if leaf is None:
            raise ReplayError(f"storage ${number} is read before it is written", "broken-tape")
        return self.define(number, leaf.data, dtype, share=number not in self._written)

    def define(self, number: int, data: Tensor, dtype: torch.dtype, *, share: bool) -> Live:
        """Make bytes (1-D uint8) a live storage; ``share`` promises that nothing writes to it."""
        storage = data.untyped_storage()
        wide = self.wide(dtype)
        if wide is not dtype:
            whole = storage.nbytes() // dtype.itemsize * dtype.itemsize
            flat = torch.empty(0, dtype=dtype, device=storage.device)
            flat = flat.set_(storage, 0, (whole // dtype.itemsize,), (1,))
            storage = flat.to(wide).untyped_storage()
        elif not share:
            storage = storage.clone()
        live = self._live[number] = Live(storage, dtype, wide)
        return live

    def bind(self, ref: TensorRef, tensor: Tensor, inputs: set[int]) -> None:
        """Make an op's result the storage behind ``ref``.

        ``inputs`` holds the addresses of the argument storages: a result that aliases one of
        them, although the recorded one did not, is copied.
        """
        if ref.storage in self._live:  # returned in place, or a second view of the same result
            return
        recorded = torch_dtype(ref.dtype)
        storage = tensor.untyped_storage()
        same = (
            tuple(tensor.shape) == ref.shape
            and tuple(tensor.stride()) == ref.stride
            and tensor.storage_offset() == ref.offset
            and storage._cdata not in inputs
        )
        if not same:
            if tuple(tensor.shape) != ref.shape:
                raise ShapeDiffers(ref, tuple(tensor.shape))
            flat = torch.zeros(_span(ref), dtype=tensor.dtype, device=tensor.device)
            storage = flat.untyped_storage()
            _view(storage, tensor.dtype, ref).copy_(tensor)
        self._live[ref.storage] = Live(storage, recorded, tensor.dtype)

    def drop(self, number: int) -> None:
        """Forget a storage after its last use."""
        self._live.pop(number, None)

    def flat_bytes(self, number: int) -> Tensor | None:
        """Return all bytes of a live storage (1-D uint8), None where it is not live."""
        live = self._live.get(number)
        if live is None:
            return None
        return torch.empty(0, dtype=torch.uint8, device=live.storage.device).set_(live.storage)

    def flat(self, number: int) -> Tensor | None:
        """Return all elements of a live storage (1-D, live dtype), None where it is not live."""
        live = self._live.get(number)
        if live is None:
            return None
        return torch.empty(0, dtype=live.live, device=live.storage.device).set_(live.storage)


class ShapeDiffers(Exception):
    """A result has another shape than the recorded one: it depends on the data."""

    def __init__(self, ref: TensorRef, shape: tuple[int, ...]) -> None:
        super().__init__(f"{ref.typed} came back as {list(shape)}")


def _view(storage: Any, dtype: torch.dtype, ref: TensorRef) -> Tensor:
    out = torch.empty(0, dtype=dtype, device=storage.device)
    return out.set_(storage, ref.offset, ref.shape, ref.stride)


def _ratio(wide: torch.dtype, narrow: torch.dtype) -> float:
    return wide.itemsize / narrow.itemsize


def _span(ref: TensorRef) -> int:
    if 0 in ref.shape:
        return ref.offset
    return ref.offset + 1 + sum((n - 1) * s for n, s in zip(ref.shape, ref.stride, strict=True))
