"""A chain of ops as lines of an excerpt: what is given, what a line makes, how it is viewed.

Must not know whether the lines show anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fp16doctor.replay import op_traits
from fp16doctor.replay.calls import outputs_of
from fp16doctor.replay.dataflow import producers_of
from fp16doctor.replay.environment import is_float_ref
from fp16doctor.replay.excerpt.chains import Chain
from fp16doctor.schema.excerpt import Line, Value
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

_DROPPED = ("pin_memory", "layout")  # named arguments that say nothing about numbers


@dataclass(slots=True)
class Draft:
    """Lines that have not been run yet."""

    lines: list[Line] = field(default_factory=list)
    given: dict[str, Tensor] = field(default_factory=dict)
    answers: list[Value] = field(default_factory=list)  # floating results of the last line
    cause: Value | None = None  # the first line's result, where the fault begins there
    written: dict[Value, str] = field(
        default_factory=dict
    )  # answer -> given tensor it is written to


class CannotBuildError(Exception):
    """The chain cannot be told in lines."""


def build(tape: Tape, chain: Chain, captured: dict[TensorRef, Tensor]) -> Draft:
    """Return the lines of a chain; raises CannotBuildError."""
    builder = _Builder(tape, chain, captured)
    for index in chain:
        builder.add(tape.ops[index])
    builder.finish(tape.ops[chain[-1]])
    return builder.draft


def item_of(call: OpCall, place: int) -> OpCall:
    """Return a foreach op on the item at ``place`` of its lists alone."""

    def cut(value: Any) -> Any:
        return value[place : place + 1] if isinstance(value, list) else value

    args = tuple(map(cut, call.args))
    kwargs = {k: cut(v) for k, v in call.kwargs.items()}
    return OpCall(call.index, call.op, args, kwargs, cut(call.outputs), call.mutates, call.site)


class _Builder:
    def __init__(self, tape: Tape, chain: Chain, captured: dict[TensorRef, Tensor]) -> None:
        self.draft = Draft()
        self._chain, self._captured = frozenset(chain), captured
        self._producers = producers_of(tape)
        self._made: dict[int, tuple[Value, TensorRef]] = {}  # storage -> last value in it
        self._names: dict[TensorRef, str] = {}

    def add(self, call: OpCall) -> None:
        """Write one call down."""

        def value(ref: TensorRef) -> Value:
            return self._value(call, ref)

        name = f"y{len(self.draft.lines)}"
        kwargs = {k: _spelled(v, value) for k, v in call.kwargs.items() if k not in _DROPPED}
        args = tuple(_spelled(a, value) for a in call.args)
        self.draft.lines.append(Line(name, call.op, args, kwargs, call.site))
        self._note_results(call, name)

    def _value(self, call: OpCall, ref: TensorRef) -> Value:
        producer = self._producers.last_writer(ref.storage, call.index)
        if producer in self._chain and ref.storage in self._made:
            value, base = self._made[ref.storage]
            if value.method is not None:
                raise CannotBuildError("a view of a view")
            method, parameters = view_between(base, ref)
            if method == "expand" and _broadcasts(call, ref):
                return value  # the op does by itself what the view was made for
            return Value(value.name, value.item, method, parameters)
        return Value(self._given(ref))

    def _given(self, ref: TensorRef) -> str:
        if ref not in self._names:
            if ref not in self._captured:
                raise CannotBuildError("a tensor that was not captured")
            name = self._names[ref] = _letter(len(self._names))
            self.draft.given[name] = self._captured[ref]
        return self._names[ref]

    def _note_results(self, call: OpCall, name: str) -> None:
        written = set(call.mutates)
        for ref in refs_in((call.args, call.kwargs)):
            if ref.storage in written and ref.storage not in self._made:
                self._made[ref.storage] = Value(self._given(ref)), ref
        outputs = call.outputs if isinstance(call.outputs, (list, tuple)) else [call.outputs]
        for place, out in enumerate(outputs):
            if isinstance(out, TensorRef) and out.storage not in written:
                item = place if isinstance(call.outputs, (list, tuple)) else None
                self._made[out.storage] = Value(name, item), out

    def finish(self, call: OpCall) -> None:
        """Note what the last call made."""
        for ref in outputs_of(call):
            if not is_float_ref(ref) or ref.storage not in self._made:
                continue
            value, base = self._made[ref.storage]
            if value in self.draft.answers:
                continue
            self.draft.answers.append(value)
            if base.storage in call.mutates and value.name in self.draft.given:
                self.draft.written[value] = value.name


def _spelled(value: Any, tensor: Callable[[TensorRef], Value]) -> Any:
    if isinstance(value, TensorRef):
        return tensor(value)
    if isinstance(value, (list, tuple)):
        return [_spelled(v, tensor) for v in value]
    return value


def _letter(place: int) -> str:
    return chr(ord("a") + place) if place < 24 else f"a{place}"


def view_between(base: TensorRef, ref: TensorRef) -> tuple[str | None, tuple[Any, ...]]:
    """Return the tensor method, and its parameters, that makes one view of a storage of another."""
    if base.dtype != ref.dtype:
        raise CannotBuildError("a view in another dtype")
    if (base.shape, base.stride, base.offset) == (ref.shape, ref.stride, ref.offset):
        return None, ()
    if base.offset == ref.offset:
        order = _permutation(base, ref)
        if order is not None:
            return "permute", order
        if _is_expanded(base, ref):
            return "expand", _expansion(base, ref)
        if _is_row(base) and _is_row(ref) and _numel(base) == _numel(ref):
            return "reshape", (-1, *ref.shape[1:]) if ref.shape else ()
    return "as_strided", (ref.shape, ref.stride, ref.offset)


def _permutation(base: TensorRef, ref: TensorRef) -> tuple[int, ...] | None:
    dims = list(zip(base.shape, base.stride, strict=True))
    wanted = list(zip(ref.shape, ref.stride, strict=True))
    if len(dims) != len(wanted) or len(set(dims)) != len(dims) or sorted(dims) != sorted(wanted):
        return None
    return tuple(dims.index(d) for d in wanted)


def _is_expanded(base: TensorRef, ref: TensorRef) -> bool:
    if len(base.shape) != len(ref.shape):
        return False
    pairs = zip(base.shape, base.stride, ref.shape, ref.stride, strict=True)
    return all((a, s) == (b, t) or (a == 1 and t == 0) for a, s, b, t in pairs)


def _expansion(base: TensorRef, ref: TensorRef) -> tuple[int, ...]:
    """Return the parameters of ``expand``: a size that stays is −1, and may be cut."""
    return tuple(-1 if a == b else b for a, b in zip(base.shape, ref.shape, strict=True))


def _broadcasts(call: OpCall, ref: TensorRef) -> bool:
    """Tell whether an elementwise op has another operand of the expanded shape."""
    shapes = [r.shape for r in refs_in((call.args, call.kwargs)) if r != ref]
    return op_traits.is_elementwise(call.op) and ref.shape in shapes


def _is_row(ref: TensorRef) -> bool:
    """Tell whether a reference is contiguous."""
    expected = 1
    for size, stride in zip(reversed(ref.shape), reversed(ref.stride), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _numel(ref: TensorRef) -> int:
    total = 1
    for size in ref.shape:
        total *= size
    return total


def is_one_of_many(call: OpCall) -> bool:
    """Tell whether an op does the same to each item of its lists."""
    return op_traits.is_foreach(call.op)
