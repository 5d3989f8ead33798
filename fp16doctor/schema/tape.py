"""A recorded training step: the ATen calls that ran, with tensors replaced by references.

Holds tensors and primitives only, never an object of the user's script, so that a tape can be
replayed after the script has ended. Must not know how to record or replay.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fp16doctor.schema.location import OpSite

if TYPE_CHECKING:
    from torch import Tensor

_PLAIN = frozenset((int, float, bool, str, type(None)))
_ABBREVIATIONS = {
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "bool": "b8",
    "complex32": "c32", "complex64": "c64", "complex128": "c128",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A view of a taped storage: enough to rebuild the tensor with ``as_strided``."""

    storage: int  # id of the storage on this tape
    version: int  # writes this storage had seen when the reference was taken
    dtype: str  # torch name without the prefix: "float16"
    shape: tuple[int, ...]
    stride: tuple[int, ...]  # in elements
    offset: int  # in elements of ``dtype``
    device: str  # "cpu", "cuda:0"

    def __str__(self) -> str:
        return f"${self.storage}.{self.version}" if self.version else f"${self.storage}"

    @property
    def typed(self) -> str:
        """``f16[8, 64]``: dtype abbreviation and shape."""
        return f"{_ABBREVIATIONS.get(self.dtype, self.dtype)}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class OpCall:
    """One ATen call."""

    index: int  # position on the tape
    op: str  # overload name, e.g. "aten.mm.default"
    args: tuple[Any, ...]  # TensorRef or primitive leaves, nested in tuples and lists
    kwargs: dict[str, Any]
    outputs: Any  # TensorRef, primitive, None, or tuple/list of them
    mutates: tuple[int, ...]  # storages this call writes in place
    site: OpSite
    rng: Any = None  # generator state in front of a random op, else None
    generator: str | None = None  # device of an explicit generator argument; None = the default one
    nonfinite: bool = False  # the screen saw inf or NaN in an output
    nan: bool = False  # of which NaN
    opaque: bool = False  # cannot be replayed: its outputs are taken from snapshots


@dataclass(frozen=True, slots=True)
class Leaf:
    """A storage the tape did not compute: parameter, buffer, batch, constant."""

    data: Tensor  # 1-D uint8 view of all bytes, or a copy made before the first write to it
    name: str | None = None  # parameter or buffer FQN
    also: tuple[str, ...] = ()  # other FQNs of the same parameter: tied weights
    is_parameter: bool = False  # a leaf tensor that requires grad
    is_buffer: bool = False
    key: int = 0  # address of the storage: the same tensor in another step
    on_disk: bool = False  # in a mapped file that nobody else writes


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a module was called."""

    takes: str  # "tensor": one floating tensor; "flat": tensors and plain values; "nest": more
    returns: str  # "tensor": one floating tensor; "nest": more


@dataclass(frozen=True, slots=True)
class Mark:
    """A tensor as it is in front of one op."""

    index: int
    ref: TensorRef


@dataclass(frozen=True, slots=True)
class Tape:
    """One step (or the script between two steps) as data."""

    step: int  # 0-based optimizer attempt; -1 before the first
    ops: tuple[OpCall, ...]
    leaves: dict[int, Leaf]  # storage id -> value at its first use
    snapshots: dict[tuple[int, int], Tensor] = field(default_factory=dict)  # (op index, storage) -> bytes written by something unseen
    losses: tuple[Mark, ...] = ()  # tensors that backward was called on, loss scale included
    backward_ends: tuple[int, ...] = ()  # first op after each backward
    batch: int | None = None  # samples: leading size of the first tensor the model was given
    optimizer_at: int | None = None  # first op of the last optimizer step
    attempt: int | None = None  # first op after the last optimizer attempt
    gradients: dict[int, str] = field(default_factory=dict)  # storage of a parameter's .grad -> parameter FQN
    final: dict[int, Tensor] = field(default_factory=dict)  # storages alive at the end of the recording, as the script left them
    keys: dict[int, int] = field(default_factory=dict)  # storage alive at the end -> its address
    refused: bool = False  # the last op raised: it has no outputs, and the step ends there
    calls: dict[str, CallForm] = field(default_factory=dict)  # module path -> how it was called
    device: str = ""  # kind of device the script asked for where the CPU stands in for it: "cuda"
    complete: bool = True  # False: ops were dropped at the cap, or the recorder missed some

    def listing(self) -> list[str]:
        """Return one line an op: ``$3: f16[8, 64] = aten.mm.default($1, $2)``."""
        return [_line(call) for call in self.ops]


def _line(call: OpCall) -> str:
    args = [_show(a) for a in call.args] + [f"{k}={_show(v)}" for k, v in call.kwargs.items()]
    outs = refs_in(call.outputs)
    left = ", ".join(f"{r}: {r.typed}" for r in outs)
    return f"{left} = {call.op}({', '.join(args)})" if left else f"{call.op}({', '.join(args)})"


def _show(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_show(v) for v in value) + "]"
    return str(value)


def refs_in(value: Any) -> list[TensorRef]:
    """Return the references in a nest of tuples, lists and dicts, in order."""
    found: list[TensorRef] = []
    _gather(value, found)
    return found


def _gather(value: Any, found: list[TensorRef]) -> None:
    # Asked several times of every op of a step: exact types first, they are nearly all there is.
    kind = type(value)
    if kind is TensorRef:
        found.append(value)
    elif kind is tuple or kind is list or isinstance(value, (tuple, list)):
        for item in value:
            if type(item) is TensorRef:
                found.append(item)
            elif type(item) not in _PLAIN:
                _gather(item, found)
    elif kind is dict or isinstance(value, dict):
        for item in value.values():
            _gather(item, found)
