"""A tape with other ops: some moved, left out, or put in.

Must not know why a step is edited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fp16doctor.schema.location import OpSite
from fp16doctor.schema.tape import Mark, OpCall, Tape

NEW = -1  # index of an op that the recording does not have


def rearranged(tape: Tape, calls: Sequence[OpCall]) -> Tape:
    """Return the tape with ``calls`` for its ops, in that order.

    Ops of the tape keep the index they have there, new ones have ``NEW``. Marks in front of an op
    that is left out move to the next one that is still there.
    """
    place = _places(tape, calls)
    return replace(
        tape,
        ops=tuple(replace(call, index=i) for i, call in enumerate(calls)),
        losses=tuple(Mark(place[m.index], m.ref) for m in tape.losses),
        backward_ends=tuple(place[i] for i in tape.backward_ends),
        optimizer_at=None if tape.optimizer_at is None else place[tape.optimizer_at],
        attempt=None if tape.attempt is None else place[tape.attempt],
        snapshots={(place[i], n): data for (i, n), data in tape.snapshots.items()},
    )


def _places(tape: Tape, calls: Sequence[OpCall]) -> dict[int, int]:
    """Return old index -> new index, for every op of the tape and for its end."""
    known = {call.index: i for i, call in enumerate(calls) if call.index != NEW}
    place = {len(tape.ops): len(calls)}
    for index in reversed(range(len(tape.ops))):
        place[index] = known.get(index, place[index + 1])
    return place


def made(op: str, args: tuple[Any, ...], mutates: tuple[int, ...], site: OpSite) -> OpCall:
    """Return a new op that writes in place and has no result of its own."""
    return OpCall(NEW, op, args, {}, None, mutates, site)
