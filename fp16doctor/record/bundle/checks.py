"""Whether a tape can be replayed at all: its ops, its references, its places.

Applied before a bundle is written and after one is read. Must not know JSON or files.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import torch

from fp16doctor.record.bundle.malformed import MalformedError
from fp16doctor.record.bundle.op_names import argument_names, why_not
from fp16doctor.record.roll import Held
from fp16doctor.schema.bundle import Bundle
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

MOST_BYTES = 2**40  # of one storage that the tape computes


class UnknownOpError(MalformedError):
    """An op that may not be in a bundle."""


def check(bundle: Bundle) -> None:
    """Raise MalformedError, naming op or storage, where a tape does not hold together."""
    tape = bundle.tape
    known = set(tape.leaves)
    for call in tape.ops:
        _check_op(call)
        _check_storages(call, known, tape)
    marks = [mark.ref for mark in tape.losses]
    _check_known([r.storage for r in marks], known, "a loss")
    _check_known(tape.gradients, known, "a gradient")
    _check_known(bundle.outcome, known, "the outcome")
    _check_known((n for _, n in tape.snapshots), known, "a snapshot")
    _check_extents(tape, marks)
    _check_places(tape)


def _check_op(call: OpCall) -> None:
    if call.opaque:  # never run
        return
    reason = why_not(call.op)
    if reason:
        raise UnknownOpError(f"op {call.index}, {call.op[:80]!r}, {reason}")
    if not argument_names(call.op).issuperset(call.kwargs):
        raise MalformedError(f"op {call.index}, {call.op}, has a named argument it does not take")
    if any(isinstance(v, Held) for v in _flat((call.args, call.kwargs))):
        raise MalformedError(f"op {call.index}, {call.op}, has an argument that was not recorded")
    if call.generator is not None and call.rng is None:
        raise MalformedError(f"op {call.index}, {call.op}, has a generator without its state")


def _flat(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if not isinstance(value, (list, tuple)):
        return (value,)
    return (leaf for v in value for leaf in _flat(v))


def _check_storages(call: OpCall, known: set[int], tape: Tape) -> None:
    """What an op reads was made before; what it writes is among its arguments."""
    read = {r.storage for r in refs_in((call.args, call.kwargs))}
    made = {r.storage for r in refs_in(call.outputs)}
    snapshot = {n for n in read if (call.index, n) in tape.snapshots}
    _check_known(read - snapshot, known, f"an argument of op {call.index}, {call.op},")
    if not read.issuperset(call.mutates):
        raise MalformedError(f"op {call.index}, {call.op}, writes what it is not given")
    known |= made | snapshot


def _check_known(numbers: Iterable[int], known: set[int], what: str) -> None:
    for number in numbers:
        if number not in known:
            raise MalformedError(f"{what} is in storage ${number}, which nothing on the tape makes")


def _check_extents(tape: Tape, marks: list[TensorRef]) -> None:
    """Every reference lies within the bytes of its storage."""
    limits = {n: leaf.data.numel() for n, leaf in tape.leaves.items()}
    for (_, number), data in tape.snapshots.items():
        limits[number] = min(data.numel(), limits.get(number, data.numel()))
    ops = (refs_in((c.args, c.kwargs, c.outputs)) for c in tape.ops)
    for ref in {r for refs in (*ops, marks) for r in refs}:
        extent, limit = _extent(ref), limits.get(ref.storage, MOST_BYTES)
        if extent > limit:
            raise MalformedError(
                f"{ref.typed} in storage ${ref.storage} ends at byte {extent} of {limit}"
            )
    for mark in marks:
        if prod(mark.shape) != 1:
            raise MalformedError(f"a loss has {prod(mark.shape)} elements")


def _extent(ref: TensorRef) -> int:
    """Return the byte behind the last that a reference covers."""
    if len(ref.shape) != len(ref.stride):
        raise MalformedError(f"{ref.typed} has {len(ref.stride)} strides")
    size: int = getattr(torch, ref.dtype).itemsize
    if 0 in ref.shape:
        return 0
    last = sum((n - 1) * s for n, s in zip(ref.shape, ref.stride, strict=True))
    return (ref.offset + last + 1) * size


def _check_places(tape: Tape) -> None:
    """Positions lie on the tape."""
    end = len(tape.ops)
    if tape.refused and not end:
        raise MalformedError("its last op raised, and it has none")
    marked = (*(m.index for m in tape.losses), *tape.backward_ends)
    places = (*marked, tape.optimizer_at, tape.attempt)
    snapshots = [index for index, _ in tape.snapshots]
    if any(p is not None and p > end for p in places) or any(i >= end for i in snapshots):
        raise MalformedError(f"a position lies beyond the tape's {end} ops")
