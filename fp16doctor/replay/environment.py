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
from fp16doctor.schema.tape import Tape, TensorRef, refs_in


@cache
def torch_dtype(name: str) -> torch.dtype:
    """Return ``torch.float16`` for ``"float16"``."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def is_float_dtype(dtype: torch.dtype) -> bool:
    """Floating or complex."""
    return dtype.is_floating_point or dtype.is_complex


def is_float_ref(ref: TensorRef) -> bool:
    """The reference is to a floating or complex tensor."""
    return is_float_dtype(torch_dtype(ref.dtype))


class Formats:
    """A policy as a mapping of dtypes."""

    def __init__(self, policy: PrecisionPolicy) -> None:
        self._widen = {torch_dtype(a): torch_dtype(b) for a, b in policy.widen}

    @property
    def identity(self) -> bool:
        """No format is changed."""
        return not self._widen

    def wide(self, dtype: torch.dtype) -> torch.dtype:
        """Return the format that stands for a recorded one."""
        return self._widen.get(dtype, dtype)


@dataclass(slots=True)
class Live:
    """A storage during a replay."""

    storage: Any  # torch.UntypedStorage
    recorded: torch.dtype  # dtype of the values its bytes were recorded as
    live: torch.dtype  # dtype its bytes now have


class ShapeDiffers(Exception):
    """A result has another shape than the recorded one: it depends on the data."""

    def __init__(self, ref: TensorRef, shape: tuple[int, ...]) -> None:
        super().__init__(f"{ref.typed} came back as {list(shape)}")


class Environment:
    """Storages by id."""

    def __init__(self, tape: Tape, policy: PrecisionPolicy) -> None:
        self._tape = tape
        self._live: dict[int, Live] = {}
        self._written = {n for op in tape.ops for n in op.mutates}
        self.formats = Formats(policy)
        self._dtypes = {} if self.formats.identity else _dtypes_of_values(tape)

    @property
    def identity(self) -> bool:
        """No format is changed."""
        return self.formats.identity

    def wide(self, dtype: torch.dtype) -> torch.dtype:
        """Return the format that stands for a recorded one."""
        return self.formats.wide(dtype)

    def has(self, number: int) -> bool:
        """The storage is live, or a leaf."""
        return number in self._live or number in self._tape.leaves

    def live_storages(self) -> int:
        """Return how many storages are held at the moment."""
        return len(self._live)

    def tensor(self, ref: TensorRef) -> Tensor:
        """Return the tensor a reference stands for.

        Writing to it writes to the storage, except for bit views of a widened storage
        (``write_back``). Raises ReplayError where the tape never defines the storage.
        """
        live = self._live.get(ref.storage) or self._load(ref)
        dtype = torch_dtype(ref.dtype)
        if dtype is live.recorded:
            return _view(live.storage, live.live, ref)
        shared = self._shared_view(live, dtype)
        if shared is not None:
            return _view(live.storage, shared, ref)
        bits = _flat(live).to(live.recorded).untyped_storage()
        return _view(bits, dtype, ref).to(self.wide(dtype))

    def live(self, number: int) -> Live | None:
        """Return a storage as it is, None where it is not live."""
        return self._live.get(number)

    def put(self, number: int, live: Live) -> None:
        """Replace a storage by another form of it."""
        self._live[number] = live

    def adopt(self, number: int, live: Live) -> None:
        """Take a storage over from another replay; its values are copied before a write."""
        self._live[number] = Live(live.storage.clone(), live.recorded, live.live)

    def own(self, ref: TensorRef) -> Tensor:
        """Return a tensor that may be written: a leaf shared with the recording is copied first."""
        self.tensor(ref)
        live = self._live[ref.storage]
        if ref.storage not in self._written:
            live.storage = live.storage.clone()
            self._written.add(ref.storage)
        return self.tensor(ref)

    def override(self, number: int, value: Tensor, ref: TensorRef, recorded: torch.dtype) -> None:
        """Give a leaf other values than the recorded ones; ``value`` has the shape of ``ref``."""
        self._live[number] = Live(_laid_out(ref, value), recorded, value.dtype)

    def widened_in_place(self, ref: TensorRef, dtype: torch.dtype) -> Tensor:
        """Keep a storage in a wider format from now on and return the tensor in it.

        A leaf stays in its format, since the script stores it there: the caller gets it as it is.
        """
        value = self.tensor(ref)
        live = self._live[ref.storage]
        if ref.storage in self._tape.leaves or not live.live.is_floating_point:
            return value
        if live.live.itemsize < dtype.itemsize:
            storage = _flat(live).to(dtype).untyped_storage()
            self._live[ref.storage] = Live(storage, live.recorded, dtype)
        return self.tensor(ref)

    def recorded_form(self, ref: TensorRef) -> Tensor:
        """Return a copy in the recorded format."""
        return self.tensor(ref).to(torch_dtype(ref.dtype), copy=True)

    def write_back(self, ref: TensorRef, tensor: Tensor) -> None:
        """Carry what an op wrote into ``tensor(ref)`` over to the storage, where that is a copy.

        Elements whose recorded bits did not change keep their wide value.
        """
        live, dtype = self._live[ref.storage], torch_dtype(ref.dtype)
        if dtype is live.recorded or self._shared_view(live, dtype) is not None:
            return
        before = _flat(live).to(live.recorded)
        after = before.clone()
        _view(after.untyped_storage(), dtype, ref).copy_(tensor)
        changed = _bytes(before).ne(_bytes(after)).reshape(-1, before.element_size()).any(1)
        flat = _flat(live)
        flat[changed] = after[changed].to(live.live)

    def _shared_view(self, live: Live, dtype: torch.dtype) -> torch.dtype | None:
        """Return the dtype in which the live bytes can be viewed as ``dtype``, None if in none."""
        wide = self.wide(dtype)
        if live.live is live.recorded and wide is dtype:
            return dtype
        pair = live.recorded.is_complex or dtype.is_complex
        if pair and live.recorded.to_real() is dtype.to_real():
            return wide  # complex numbers as pairs of reals
        return None

    def _load(self, ref: TensorRef) -> Live:
        leaf = self._tape.leaves.get(ref.storage)
        if leaf is None:
            raise ReplayError(
                f"storage ${ref.storage} is read before anything on the tape has written it; "
                "the recording of this step is incomplete",
                "broken-tape",
            )
        return self.define(ref, leaf.data, share=ref.storage not in self._written)

    def define(self, ref: TensorRef, data: Tensor, *, share: bool) -> Live:
        """Make bytes (1-D uint8) the storage behind ``ref``; ``share`` only if it is never written.

        Bytes that do not fill an element at the end are dropped where the format changes.
        """
        storage = data.untyped_storage()
        dtype = self._dtypes.get(ref.storage, torch_dtype(ref.dtype))
        wide = self.wide(dtype)
        if wide is not dtype:
            whole = storage.nbytes() // dtype.itemsize
            flat = torch.empty(0, dtype=dtype, device=storage.device).set_(
                storage, 0, (whole,), (1,)
            )
            storage = flat.to(wide).untyped_storage()
        elif not share:
            storage = storage.clone()
        live = self._live[ref.storage] = Live(storage, dtype, wide)
        return live

    def bind(self, pairs: list[tuple[TensorRef, Tensor]], inputs: set[int]) -> None:
        """Make an op's results the storages behind their references.

        ``inputs`` holds the addresses of the argument storages: a result that aliases one of
        them, or another result, although the recorded one did not, is copied. Raises
        ShapeDiffers, before anything is bound, where a result has another shape.
        """
        for ref, tensor in pairs:
            if tuple(tensor.shape) != ref.shape:
                raise ShapeDiffers(ref, tuple(tensor.shape))
        taken = set(inputs)
        for ref, tensor in pairs:
            if ref.storage in self._live:  # returned in place, or a second view of one result
                continue
            live = self._live[ref.storage] = self._bound(ref, tensor, taken)
            taken.add(live.storage._cdata)

    def _bound(self, ref: TensorRef, tensor: Tensor, taken: set[int]) -> Live:
        if tensor._is_zerotensor():  # has no memory
            tensor = torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        tensor = tensor.resolve_conj().resolve_neg()
        storage = tensor.untyped_storage()
        if not _same_geometry(tensor, ref) or storage._cdata in taken:
            storage = _laid_out(ref, tensor)
        return Live(storage, torch_dtype(ref.dtype), tensor.dtype)

    def drop(self, number: int) -> None:
        """Forget a storage after its last use."""
        self._live.pop(number, None)


def _dtypes_of_values(tape: Tape) -> dict[int, torch.dtype]:
    """Return storage -> dtype of the values in it: the first floating one it is referenced as."""
    found: dict[int, torch.dtype] = {}
    for call in tape.ops:
        for ref in refs_in((call.args, call.kwargs, call.outputs)):
            dtype = torch_dtype(ref.dtype)
            known = found.get(ref.storage)
            if known is None or (is_float_dtype(dtype) and not is_float_dtype(known)):
                found[ref.storage] = dtype
    return found


def _view(storage: Any, dtype: torch.dtype, ref: TensorRef) -> Tensor:
    out = torch.empty(0, dtype=dtype, device=storage.device)
    return out.set_(storage, ref.offset, ref.shape, ref.stride)


def _flat(live: Live) -> Tensor:
    return torch.empty(0, dtype=live.live, device=live.storage.device).set_(live.storage)


def in_recorded_format(live: Live) -> Live:
    """Return a storage with its values rounded to the format they were recorded in."""
    flat = _flat(live).to(live.recorded, copy=True)
    return Live(flat.untyped_storage(), live.recorded, live.recorded)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8)


def _same_geometry(tensor: Tensor, ref: TensorRef) -> bool:
    return tuple(tensor.stride()) == ref.stride and tensor.storage_offset() == ref.offset


def _laid_out(ref: TensorRef, tensor: Tensor) -> Any:
    """Return a new storage that holds ``tensor`` in the recorded strides."""
    flat = torch.zeros(_span(ref), dtype=tensor.dtype, device=tensor.device)
    # Expanded dimensions share their elements: the first of each is written, for all.
    first = tuple(slice(0, 1) if s == 0 else slice(None) for s in ref.stride)
    _view(flat.untyped_storage(), tensor.dtype, ref)[first].copy_(tensor[first])
    return flat.untyped_storage()


def _span(ref: TensorRef) -> int:
    if 0 in ref.shape:
        return ref.offset
    return ref.offset + 1 + sum((n - 1) * s for n, s in zip(ref.shape, ref.stride, strict=True))
