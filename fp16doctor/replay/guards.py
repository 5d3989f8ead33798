"""A step as it would run if what goes into one op were bounded, or a constant added to it first.

A bound is ``clamp``: its result goes into the op, and the gradient of a bounded element is 0
(torch's ``clamp_backward``: the gradient passes where low <= x <= high). A constant that is added
leaves the gradient alone. What backward saved of the operand changes with it.

Must not know why an op is guarded or whether the guard is any better.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from fp16doctor.replay.dataflow import producers_of
from fp16doctor.replay.editing import NEW, rearranged
from fp16doctor.replay.node_backward import of_operand, reads_operand
from fp16doctor.replay.op_traits import base
from fp16doctor.schema.location import OpSite, Phase, SourceLine
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

FORWARD = (Phase.FORWARD, Phase.LOSS)


@dataclass(frozen=True, slots=True)
class Guard:
    """What happens to one argument of every op of a kind on a line, before the op gets it."""

    line: SourceLine
    op: str  # "log"
    place: int  # position of the argument
    low: float | None = None  # bounds
    high: float | None = None
    add: float | None = None  # a constant, in place of bounds
    of_cast: bool = False  # the line casts the argument itself: the guard stands behind the cast


def guarded_ops(tape: Tape, line: SourceLine, op: str) -> tuple[OpCall, ...]:
    """Return the ops of forward and loss that a guard of that line and kind acts on."""
    calls = (c for c in tape.ops if c.site.phase in FORWARD and c.site.caller is None)
    return tuple(c for c in calls if base(c.op).rstrip("_") == op and c.site.source == line)


def guarded(tape: Tape, guard: Guard) -> Tape | None:
    """Return the step with the guard; as it is where it has no such op.

    None where the tape does not show which of its backward ops belong to the guarded one.
    """
    edit, calls = _Edit(tape), guarded_ops(tape, guard.line, guard.op)
    if _is_left_out_of_recompute(tape, guard.line, calls) or _share_operands(tape, calls, guard):
        return None
    for call in calls:
        if not edit.put_in(call, guard):
            return None
    return edit.tape()


def _share_operands(tape: Tape, calls: tuple[OpCall, ...], guard: Guard) -> bool:
    """Tell whether two ops have one operand: which backward is whose?

    One that a checkpoint computes again is the same op, and its operand guarded the same.
    """
    first = _first_loss(tape)
    seen = {(c.index < first, repr(c.args[guard.place])) for c in calls}
    return len(seen) < len(calls)


def _is_left_out_of_recompute(tape: Tape, line: SourceLine, calls: tuple[OpCall, ...]) -> bool:
    """Tell whether a checkpoint computes the line again, and stops in front of the guarded op.

    Backward then reads an operand that no op of forward was given.
    """
    first = _first_loss(tape)
    again = [c for c in tape.ops[first:] if c.site.phase in FORWARD and c.site.source == line]
    return bool(again) and all(c.index < first for c in calls)


def _first_loss(tape: Tape) -> int:
    return min((m.index for m in tape.losses), default=len(tape.ops))


def cast_of(tape: Tape, call: OpCall, x: TensorRef) -> OpCall | None:
    """Return the cast of an op's argument that stands on the op's own line, as autocast's does."""
    index = producers_of(tape).last_writer(x.storage, call.index)
    made = None if index is None else tape.ops[index]
    if made is None or base(made.op) != "_to_copy" or made.site.source != call.site.source:
        return None
    return made if isinstance(made.args[0], TensorRef) else None


class _Edit:
    """Ops that change, and ops that are put in front of or behind others."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._changed: dict[int, OpCall] = {}
        self._before: dict[int, list[OpCall]] = {}
        self._masks: dict[int, TensorRef] = {}  # op that makes the operand's gradient -> its mask
        self._next = 1 + max(_storages(tape), default=0)

    def put_in(self, call: OpCall, guard: Guard) -> bool:
        """Guard one op; False where that cannot be expressed."""
        x = call.args[guard.place]
        if not isinstance(x, TensorRef) or call.mutates:
            return False
        cast = None if guard.of_cast else cast_of(self._tape, call, x)
        given = x if cast is None else cast.args[0]
        own = of_operand(self._tape, call, guard.place)
        if own is None:
            return False
        new = self._guard(cast or call, given, guard)
        if cast is not None:
            if not self._is_alone(cast, call, own.ops):
                return False
            self._change(cast, given, new)
        else:
            self._change(call, x, new, only=guard.place)
            for index in own.ops:
                if reads_operand(self._tape.ops[index], x):
                    self._change(self._tape.ops[index], x, new)
        if own.gradient is not None and guard.add is None:
            self._masks[own.gradient] = self._mask(cast or call, given, guard)
        return True

    def _is_alone(self, cast: OpCall, call: OpCall, own: frozenset[int]) -> bool:
        """Tell whether nothing but the op and its backward reads the cast's result."""
        (out,) = refs_in(cast.outputs)
        reads = {c.index for c in self._tape.ops if _reads(c, out.storage)}
        return reads <= {call.index, *own}

    def _guard(self, at: OpCall, given: TensorRef, guard: Guard) -> TensorRef:
        if guard.add is not None:
            return self._op(at, "aten.add.Tensor", (given, guard.add), given.dtype, given)
        bounds = (given, guard.low, guard.high)
        return self._op(at, "aten.clamp.default", bounds, given.dtype, given)

    def _mask(self, at: OpCall, given: TensorRef, guard: Guard) -> TensorRef:
        """Where the gradient passes, as clamp's backward has it."""
        parts = [
            self._op(at, f"aten.{name}.Scalar", (given, bound), "bool", given)
            for name, bound in (("ge", guard.low), ("le", guard.high))
            if bound is not None
        ]
        if len(parts) == 1:
            return parts[0]
        return self._op(at, "aten.logical_and.default", tuple(parts), "bool", given)

    def _op(
        self, at: OpCall, op: str, args: tuple[Any, ...], dtype: str, like: TensorRef
    ) -> TensorRef:
        """Put a new op in front of one of the tape's and return its result."""
        out = self._fresh(like, dtype)
        made = OpCall(NEW, op, args, {}, out, (), at.site)
        self._before.setdefault(at.index, []).append(made)
        return out

    def _fresh(self, like: TensorRef, dtype: str) -> TensorRef:
        self._next += 1
        stride = _contiguous(like.shape)
        return TensorRef(self._next, 0, dtype, like.shape, stride, 0, like.device)

    def _change(
        self, call: OpCall, old: TensorRef, new: TensorRef, only: int | None = None
    ) -> None:
        known = self._changed.get(call.index, call)
        args = tuple(
            new if same_view(a, old) and only in (None, i) else a for i, a in enumerate(known.args)
        )
        self._changed[call.index] = replace(known, args=args)

    def tape(self) -> Tape:
        """Return the edited step."""
        if not self._changed:
            return self._tape
        calls: list[OpCall] = []
        moved: dict[int, int] = {}  # gradient -> storage that has it from here on
        for call in self._tape.ops:
            mine = _moved(self._changed.get(call.index, call), moved)
            calls += [*self._before.get(call.index, ()), mine]
            if call.index in self._masks:
                (gradient,) = refs_in(mine.outputs)
                masked = self._masked(gradient, self._masks[call.index], mine.site)
                calls.append(masked)
                moved[gradient.storage] = refs_in(masked.outputs)[0].storage
        tape = rearranged(self._tape, calls)
        names = {moved.get(n, n): name for n, name in tape.gradients.items()}
        return replace(tape, gradients=names)

    def _masked(self, gradient: TensorRef, mask: TensorRef, site: OpSite) -> OpCall:
        self._next += 1
        out = replace(gradient, storage=self._next)
        return OpCall(NEW, "aten.where.ScalarOther", (mask, gradient, 0), {}, out, (), site)


def same_view(value: Any, ref: TensorRef) -> bool:
    """Tell whether a value is a reference to the same elements, written since or not."""
    return isinstance(value, TensorRef) and replace(value, version=ref.version) == ref


def _reads(call: OpCall, storage: int) -> bool:
    return any(r.storage == storage for r in refs_in((call.args, call.kwargs)))


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _moved(call: OpCall, moved: dict[int, int]) -> OpCall:
    """Return an op that has the gradients which were masked in front of it."""
    storages = {r.storage for r in refs_in((call.args, call.kwargs, call.outputs))}
    if storages.isdisjoint(moved):
        return call
    return replace(
        call,
        args=_put(call.args, moved),
        kwargs=_put(call.kwargs, moved),
        outputs=_put(call.outputs, moved),
        mutates=tuple(moved.get(n, n) for n in call.mutates),
    )


def _put(value: Any, moved: dict[int, int]) -> Any:
    if isinstance(value, TensorRef):
        return replace(value, storage=moved.get(value.storage, value.storage))
    if isinstance(value, dict):
        return {k: _put(v, moved) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_put(v, moved) for v in value)
    return value


def _storages(tape: Tape) -> Iterator[int]:
    yield from tape.leaves
    for call in tape.ops:
        yield from (r.storage for r in refs_in((call.args, call.kwargs, call.outputs)))
        yield from call.mutates
