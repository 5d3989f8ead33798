"""The rolling tape: raw records of the current step, cheap to write and to drop.

No tensor of the script is kept but the storages first seen as an input (parameters, buffers,
batch), by reference, and a copy of each made before its first write. Storages are known by the
address of their ``StorageImpl``; a weak reference to each keeps that address from being reused.

Must not know phases, modules or source lines: ``where`` is handed in with each record.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from fp16doctor.record.op_info import OpInfo
from fp16doctor.record.screen import (
    FINITE,
    HAS_INF,
    HAS_NAN,
    exact,
    flag_on_device,
    screen_cpu,
)

_IDS = itertools.count(1)  # storage ids are never used twice, so records can move between tapes

RawRef = tuple[int, torch.dtype, torch.Size, tuple[int, ...], Any]  # offset: int (or SymInt)


@dataclass(slots=True)
class RawOp:
    """One call as recorded; tensors are plain tuples (storage id, dtype, shape, stride, offset)."""

    func: Any
    info: OpInfo
    args: list[Any]
    kwargs: dict[str, Any]
    outputs: Any
    where: Any  # site key, made by the recorder
    rng: Any
    generator_key: str | None
    written: tuple[int, ...]
    code: int = FINITE  # what the screen saw in the outputs
    opaque: bool = False
    reads_bad: int = FINITE  # what the screen had seen in the storages it read


@dataclass(slots=True)
class Held:
    """A tensor without a plain storage (sparse, nested, wrapped): its op cannot be replayed."""

    description: str


@dataclass(slots=True)
class LeafStorage:
    """A storage the tape did not compute."""

    storage: Any  # torch.UntypedStorage, kept alive
    copy: Any = None  # its bytes before the first write
    device: str = "cpu"


@dataclass(slots=True)
class Roll:
    """Raw records of one step and the storages they speak of."""

    step: int
    copy_cap: int  # bytes of copies made before writes, per step
    ops: list[RawOp] = field(default_factory=list)
    ids: dict[int, int] = field(default_factory=dict)  # StorageImpl address -> id
    weak: dict[int, Any] = field(default_factory=dict)  # id -> StorageWeakRef
    leaves: dict[int, LeafStorage] = field(default_factory=dict)
    unseen: set[int] = field(default_factory=set)  # ids whose values nothing taped has written
    snapshots: dict[tuple[int, int], Any] = field(default_factory=dict)
    bad: dict[int, int] = field(default_factory=dict)  # id -> HAS_INF or HAS_NAN
    lent: set[int] = field(default_factory=set)  # ops that also begin the next tape
    params: dict[int, Tensor] = field(default_factory=dict)  # leaves that train
    pending: list[tuple[RawOp, Tensor]] = field(default_factory=list)  # device flags, unread
    held: bool = False  # a Held was made since this was last cleared
    copied: int = 0
    over_cap: bool = False
    n_flagged: int = 0

    # -- references ------------------------------------------------------------------------------

    def read(self, tensor: Tensor) -> RawRef | Held:
        """Return the reference of an input; a storage seen for the first time is a leaf."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return self._hold(tensor)
        key = storage._cdata
        number = self.ids.get(key)
        if number is None:
            number = self._add(key, storage)
            self.leaves[number] = LeafStorage(storage, device=str(tensor.device))
            if tensor.requires_grad and tensor.is_leaf:
                self.params[number] = tensor
            self._screen_leaf(number, tensor)
        elif number in self.unseen:
            self._snapshot(number, storage)
        return (number, tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset())

    def made(self, tensor: Tensor, *, uninitialised: bool) -> RawRef | Held:
        """Return the reference of an output."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return self._hold(tensor)
        key = storage._cdata
        number = self.ids.get(key)
        if number is None:
            number = self._add(key, storage)
            if uninitialised and tensor.numel():
                self.unseen.add(number)
        return (number, tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset())

    def _hold(self, tensor: Tensor) -> Held:
        self.held = True
        return Held(f"{tensor.layout} tensor")

    def touch(self, tensor: Tensor) -> None:
        """Note the storage of a tensor that is only viewed."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return
        if storage._cdata not in self.ids:
            self.read(tensor)

    def _add(self, key: int, storage: Any) -> int:
        number = self.ids[key] = next(_IDS)
        self.weak[number] = StorageWeakRef(storage)
        return number

    def _screen_leaf(self, number: int, tensor: Tensor) -> None:
        if tensor.is_cpu and tensor.is_floating_point() and not tensor.is_quantized:
            code = screen_cpu(tensor)
            if code:
                self.bad[number] = code

    # -- values that must be kept ----------------------------------------------------------------

    def protect(self, tensor: Tensor) -> bool:
        """Copy a leaf before its first write; False when the cap does not allow it."""
        ref = self.made(tensor, uninitialised=False) if self._known(tensor) else self.read(tensor)
        leaf = self.leaves.get(ref[0]) if type(ref) is tuple else None
        if leaf is None or leaf.copy is not None:
            return True
        size = leaf.storage.nbytes()
        if self.copied + size > self.copy_cap:
            self.over_cap = True
            return False
        self.copied += size
        leaf.copy = leaf.storage.clone()
        return True

    def _known(self, tensor: Tensor) -> bool:
        try:
            return tensor.untyped_storage()._cdata in self.ids
        except (NotImplementedError, RuntimeError):
            return False

    def numbers_of(self, tensors: list[Tensor]) -> tuple[int, ...]:
        """Return the storage ids of tensors already referenced."""
        refs = [self.made(t, uninitialised=False) for t in tensors]
        return tuple(r[0] for r in refs if type(r) is tuple)

    def overwritten(self, tensor: Tensor) -> None:
        """An op is about to write a tensor without reading it."""
        if self.unseen:
            ref = self.made(tensor, uninitialised=False)
            if type(ref) is tuple:
                self.unseen.discard(ref[0])

    def _snapshot(self, number: int, storage: Any) -> None:
        """Keep the value of a storage that something unseen has written, at its first read."""
        self.unseen.discard(number)
        self.snapshots[len(self.ops), number] = storage.clone()

    def written(self, numbers: tuple[int, ...]) -> None:
        """A taped op has written these storages."""
        if self.unseen:
            self.unseen.difference_update(numbers)

    def unknown(self, op: RawOp) -> None:
        """The op cannot be replayed: what it wrote is kept at its first read."""
        op.opaque = True
        for number in (*op.written, *numbers(op.outputs)):
            self.unseen.add(number)

    # -- screening -------------------------------------------------------------------------------

    def screen(self, op: RawOp, tensors: list[tuple[Tensor, Any]]) -> None:
        """Look for inf and NaN in what an op wrote; update what is known of its storages."""
        worst = FINITE
        for tensor, ref in tensors:
            code = self._screen_one(op, tensor)
            if type(ref) is tuple:
                if code:
                    self.bad[ref[0]] = max(code, self.bad.get(ref[0], FINITE))
                elif self.bad and ref[0] in self.bad and _covers(tensor):
                    del self.bad[ref[0]]
            worst = max(worst, code)
        if worst:
            op.code = worst
            self.n_flagged += 1

    def _screen_one(self, op: RawOp, tensor: Tensor) -> int:
        if tensor.is_cpu:
            return exact(tensor) if tensor.is_complex() else screen_cpu(tensor)
        if tensor.device.type == "cuda" and not tensor.is_complex():
            self.pending.append((op, flag_on_device(tensor)))
        return FINITE

    def read_flags(self, extra: list[Tensor]) -> list[float]:
        """Read the device flags of the step and ``extra`` numbers: one synchronisation a device."""
        pending, self.pending = self.pending, []
        by_device: dict[torch.device, list[tuple[int, Tensor]]] = {}
        wanted = [flag for _, flag in pending] + [t.reshape(()) for t in extra]
        for place, tensor in enumerate(wanted):
            by_device.setdefault(tensor.device, []).append((place, tensor.double()))
        values = [0.0] * len(wanted)
        for pairs in by_device.values():
            numbers = torch.stack([t for _, t in pairs]).tolist()
            for (place, _), number in zip(pairs, numbers, strict=True):
                values[place] = number
        for (op, _), total in zip(pending, values, strict=False):
            if total - total != 0:
                self.n_flagged += not op.code
                op.code = max(op.code, HAS_NAN if total != total else HAS_INF)
        return values[len(pending) :]

    def alive(self, number: int) -> Any:
        """Return the storage behind an id if the script still holds it, else None."""
        weak = self.weak.get(number)
        if weak is None or weak.expired():
            return None
        return torch.UntypedStorage._new_with_weak_ptr(weak.cdata)


def numbers(value: Any) -> list[int]:
    """Return the storage ids in a nest of lists of references."""
    if type(value) is tuple:
        return [value[0]]
    return [n for v in value for n in numbers(v)] if type(value) is list else []


def _covers(tensor: Tensor) -> bool:
    return tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()
