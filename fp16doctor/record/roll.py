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

from fp16doctor.record.op_info import OpInfo
from fp16doctor.record.read_back import read_back
from fp16doctor.record.screen import FINITE, ON_CPU, code_of, extremes
from fp16doctor.record.weak_storage import WeakStorage

_next_id = itertools.count(1).__next__  # ids are never used twice: records move between tapes
NO_STORAGE = (NotImplementedError, RuntimeError, ValueError)

# Bytes up to which a batch is copied at its first use: numpy may write to it without a word.
EARLY_COPY = 2**20

# Plain tuples of plain things: the garbage collector stops looking at them after a while.
RawRef = tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...], Any]  # offset: int, SymInt


@dataclass(slots=True)
class RawOp:
    """One call as recorded; tensors are plain tuples (storage id, dtype, shape, stride, offset)."""

    info: OpInfo
    args: list[Any]
    kwargs: dict[str, Any]
    where: Any  # site key, made by the recorder
    written: tuple[int, ...] = ()
    outputs: Any = None
    rng: Any = None
    generator_key: str | None = None
    code: int = FINITE  # what the screen saw in the outputs
    sick: list[tuple[int, int, int]] | None = None  # (storage, code, bytes of the view looked at)
    opaque: bool = False


@dataclass(slots=True)
class Raised:
    """A call of the open step that raised, and when."""

    error: BaseException
    op: RawOp
    step: int
    index: int  # records in front of it


@dataclass(slots=True)
class Held:
    """Something that cannot be on a tape (a sparse tensor, a process group, a function)."""

    description: str


@dataclass(slots=True)
class LeafStorage:
    """A storage the tape did not compute."""

    storage: Any  # torch.UntypedStorage, kept alive
    copy: Any = None  # its bytes before the first write

    @property
    def device(self) -> str:
        """``cpu``, ``cuda:0``."""
        return str(self.storage.device)

    @property
    def bytes(self) -> Any:
        """The storage as it was at its first use."""
        return self.storage if self.copy is None else self.copy


@dataclass(slots=True)
class Roll:
    """Raw records of one step and the storages they speak of."""

    step: int
    copy_cap: int  # bytes of copies made before writes, per step
    ops: list[RawOp] = field(default_factory=list)
    ids: dict[int, int] = field(default_factory=dict)  # StorageImpl address -> id
    weak: dict[int, WeakStorage] = field(default_factory=dict)
    leaves: dict[int, LeafStorage] = field(default_factory=dict)
    clean: set[int] = field(default_factory=set)  # ids all of whose values were seen to be finite
    unseen: set[int] = field(default_factory=set)  # ids whose values nothing taped has written
    viewed: set[int] = field(default_factory=set)  # leaves of which no value was read yet
    snapshots: dict[tuple[int, int], Any] = field(default_factory=dict)
    params: dict[int, Tensor] = field(default_factory=dict)  # leaves that train
    pending: list[tuple[RawOp, int, int, Tensor, Tensor]] = field(default_factory=list)
    held: bool = False  # a Held was made since this was last cleared
    copied: int = 0
    fresh: int = 0  # bytes that came to be kept since the tape was last weighed
    n_flagged: int = 0

    # -- references ------------------------------------------------------------------------------

    def read(self, tensor: Tensor) -> RawRef | Held:
        """Return the reference of an input; a storage seen for the first time is a leaf."""
        try:
            storage = tensor.untyped_storage()
            ref = tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        except NO_STORAGE:
            return self.hold(tensor)
        number = self.ids.get(storage._cdata)
        if ref[0] in _COMPLEX and tensor.is_conj():
            return self.hold(tensor)  # its storage holds other values than the tensor
        if number is None:
            if tensor._is_zerotensor():
                return self.hold(tensor)  # there is no memory behind it
            number = self._leaf(tensor, storage)
            self._copy_early(number, tensor)
        elif self.viewed and number in self.viewed:
            self._copy_early(number, tensor)
        elif self.unseen and number in self.unseen:
            self._snapshot(number, storage)
        return (number, *ref)

    def _leaf(self, tensor: Tensor, storage: Any) -> int:
        number = self._add(storage)
        self.leaves[number] = LeafStorage(storage)
        if tensor.requires_grad and tensor.is_leaf:
            self.params[number] = tensor
            self.fresh += _bytes_of(tensor)
        else:
            self.fresh += storage.nbytes()
        return number

    def _copy_early(self, number: int, tensor: Tensor) -> None:
        """Copy a small leaf at its first read, but for what trains."""
        self.viewed.discard(number)
        leaf = self.leaves[number]
        size = leaf.storage.nbytes()
        if size > EARLY_COPY or not tensor.is_cpu or number in self.params or leaf.copy is not None:
            return
        self.copied += size
        leaf.copy = leaf.storage.clone()

    def made(self, tensor: Tensor) -> RawRef | Held:
        """Return the reference of an output."""
        if type(tensor) is not Tensor and intercepts(type(tensor)):
            return self.hold(tensor)
        try:
            storage = tensor.untyped_storage()
            ref = tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        except NO_STORAGE:
            return self.hold(tensor)
        number = self.ids.get(storage._cdata)
        if number is None:
            if tensor._is_zerotensor():
                return self.hold(tensor)  # there is no memory behind it
            number = self._add(storage)
        if ref[0] in _COMPLEX and tensor.is_conj():
            return self.hold(tensor)
        return (number, *ref)

    def hold(self, value: Any) -> Held:
        """Return a stand-in for a value that cannot be on a tape."""
        self.held = True
        kind = value.layout if isinstance(value, Tensor) else type(value).__name__
        return Held(str(kind))

    def touch(self, tensor: Tensor) -> None:
        """Note the storage of a tensor that is only viewed: numpy may write it through the view."""
        try:
            storage = tensor.untyped_storage()
        except NO_STORAGE:
            return
        if storage._cdata not in self.ids and not tensor._is_zerotensor():
            self.viewed.add(self._leaf(tensor, storage))

    def _add(self, storage: Any) -> int:
        number = self.ids[storage._cdata] = _next_id()
        self.weak[number] = WeakStorage(storage)
        return number

    # -- values that must be kept ----------------------------------------------------------------

    def protect(self, number: int) -> bool:
        """Copy a leaf before its first write; False when the cap does not allow it."""
        leaf = self.leaves.get(number)
        if leaf is None or leaf.copy is not None:
            return True
        size = 0 if leaf.storage.device.type == "meta" else leaf.storage.nbytes()
        if self.copied + size > self.copy_cap:
            return False
        self.copied += size
        leaf.copy = leaf.storage.clone()
        return True

    def overwritten(self, tensor: Tensor) -> None:
        """An op is about to write a tensor without reading it."""
        try:
            number = self.ids.get(tensor.untyped_storage()._cdata)
        except NO_STORAGE:
            return
        if number is not None:
            self.unseen.discard(number)

    def _snapshot(self, number: int, storage: Any) -> None:
        """Keep the value of a storage that something unseen has written, at its first read."""
        self.unseen.discard(number)
        self.snapshots[len(self.ops), number] = storage.clone()
        self.fresh += storage.nbytes()

    def unknown(self, op: RawOp) -> None:
        """The op cannot be replayed: what it wrote is kept at its first read."""
        op.opaque = True
        lost = {*op.written, *numbers(op.outputs)}
        self.unseen |= lost
        self.clean -= lost

    # -- screening -------------------------------------------------------------------------------

    def screen(self, op: RawOp, tensor: Tensor, ref: Any) -> None:
        """Look for inf and NaN in what an op wrote; on a device, without reading the answer."""
        if type(ref) is not tuple:
            if not has_values(tensor):
                return
            tensor, ref = tensor._values(), (0,)
        if tensor.is_cpu:
            look = ON_CPU.get(tensor.dtype)
            code = look(tensor) if look is not None else FINITE
            if code:
                self._flag(op, ref[0], code, _bytes_of(tensor))
            return
        found = extremes(tensor)
        if found is not None:
            self.pending.append((op, ref[0], _bytes_of(tensor), *found))

    def _flag(self, op: RawOp, number: int, code: int, size: int) -> None:
        self.n_flagged += not op.code
        op.code = max(op.code, code)
        op.sick = [*(op.sick or ()), (number, code, size)]
        self.clean.discard(number)

    def read_flags(self, extra: list[Tensor]) -> list[list[float]]:
        """Read the device flags of the step and ``extra`` numbers: one synchronisation a device."""
        pending, self.pending = self.pending, []
        flags = [t for _, _, _, *pair in pending for t in pair]
        values = read_back([*flags, *extra])
        for place, (op, number, size, _, _) in enumerate(pending):
            code = code_of(values[2 * place][0], values[2 * place + 1][0])
            if code:
                self._flag(op, number, code, size)
        return values[len(flags) :]

    def alive(self, number: int) -> Any:
        """Return the storage behind an id if it still exists, else None."""
        weak = self.weak.get(number)
        return None if weak is None else weak.storage()


def intercepts(kind: type) -> bool:
    """Tell whether a tensor type handles ops itself: a wrapper, a tensor that is only traced."""
    mine = getattr(kind, "__torch_dispatch__", None)
    return mine is not None and mine is not Tensor.__torch_dispatch__


def numbers(value: Any) -> list[int]:
    """Return the storage ids in a nest of lists of references."""
    if type(value) is tuple:
        return [value[0]]
    return [n for v in value for n in numbers(v)] if type(value) is list else []


_COMPLEX = frozenset((torch.complex32, torch.complex64, torch.complex128))


def has_values(tensor: Tensor) -> bool:
    """Tell whether a tensor without plain storage keeps its values in one that has."""
    return tensor.layout is torch.sparse_coo and not intercepts(type(tensor))


def _bytes_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
