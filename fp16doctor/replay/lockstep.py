"""Two replays side by side: as run, and the reference; every birth is caught on the way.

Must not know severities or words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from fp16doctor.errors import ReplayError
from fp16doctor.replay.birth_watch import BirthWatch
from fp16doctor.replay.births import BirthFacts
from fp16doctor.replay.casting import REFUSALS
from fp16doctor.replay.player import Player
from fp16doctor.schema.policy import AS_RUN, PrecisionPolicy
from fp16doctor.schema.tape import OpCall, Tape, refs_in

# A Python number that was read from a tensor differs by more than rounding from here on.
SCALAR_TOLERANCE = 0.01

__all__ = ["BirthFacts", "LockstepResult", "Observer", "last_uses", "lockstep"]


@dataclass(slots=True)
class LockstepResult:
    """Everything later passes need."""

    run: Player
    reference: Player | None
    births: list[BirthFacts] = field(default_factory=list)
    codes: dict[int, dict[int, int]] = field(default_factory=dict)  # op -> storage -> code
    losses: list[tuple[float, float | None]] = field(default_factory=list)
    scalars_differ: int = 0


class Observer:
    """Called in front of ops and at the end; sees both players."""

    def before(self, index: int, run: Player, reference: Player | None) -> None:
        """In front of op ``index`` (or at the end: index == number of ops)."""

    def after(self, call: OpCall, run: Player, reference: Player | None) -> None:
        """Behind an op."""


def lockstep(
    tape: Tape, policy: PrecisionPolicy | None, observers: tuple[Observer, ...] = ()
) -> LockstepResult:
    """Replay as run, and under ``policy`` beside it where one is given.

    Raises ReplayError where the tape as run cannot be played. The caller holds the random state.
    """
    run = Player(tape, AS_RUN)
    reference = Player(tape, policy) if policy is not None else None
    result = LockstepResult(run, reference)
    last = last_uses(tape)
    marked = {m.index for m in tape.losses}
    for call in tape.ops:
        for observer in observers:
            observer.before(call.index, run, reference)
        if call.index in marked:
            _read_losses(tape, call.index, result)
        _play(call, result)
        for observer in observers:
            observer.after(call, run, reference)
        for number in last.get(call.index, ()):
            run.env.drop(number)
            if reference is not None:
                reference.env.drop(number)
    _read_losses(tape, len(tape.ops), result)
    for observer in observers:
        observer.before(len(tape.ops), run, reference)
    return result


def _play(call: OpCall, result: LockstepResult) -> None:
    """Run one op in both; a flagged one is watched."""
    run, reference = result.run, result.reference
    watch = BirthWatch(call, run, reference) if call.nonfinite and not call.opaque else None
    try:
        run.play(call)
    except REFUSALS as error:
        raise _failed(call, error) from error
    if reference is not None:
        reference.play(call, run)
        result.scalars_differ += _scalar_differs(call, run, reference)
    if watch is not None:
        codes = result.codes[call.index] = watch.codes()
        birth = watch.facts(codes)
        if birth is not None:
            result.births.append(birth)


def _failed(call: OpCall, error: Exception) -> ReplayError:
    if isinstance(error, ReplayError):
        return error
    return ReplayError(
        f"replaying `{call.op}`, op {call.index} of step {call.site.step}, failed: {error}; "
        "the step is left out of the diagnosis",
        "replay-failed",
    )


def last_uses(tape: Tape) -> dict[int, list[int]]:
    """Return op index -> storages nothing needs afterwards."""
    last: dict[int, int] = {}
    for call in tape.ops:
        for ref in refs_in((call.args, call.kwargs, call.outputs)):
            last[ref.storage] = call.index
    kept = set(tape.final) | set(tape.gradients) | {m.ref.storage for m in tape.losses}
    kept |= {n for n, leaf in tape.leaves.items() if leaf.is_parameter or leaf.is_buffer}
    out: dict[int, list[int]] = {}
    for number, index in last.items():
        if number not in kept:
            out.setdefault(index, []).append(number)
    return out


def _read_losses(tape: Tape, index: int, result: LockstepResult) -> None:
    run, reference = result.run, result.reference
    for mark in tape.losses:
        if mark.index == index and run.env.has(mark.ref.storage):
            mine = float(run.env.tensor(mark.ref))
            other = None if reference is None else float(reference.env.tensor(mark.ref))
            result.losses.append((mine, other))


def _scalar_differs(call: OpCall, run: Player, reference: Player) -> bool:
    """Tell whether ``.item()`` gives another number in the reference, by more than rounding."""
    if call.index not in run.scalars:
        return False
    mine: Any = run.scalars[call.index]
    other: Any = reference.scalars.get(call.index, mine)
    if not isinstance(mine, (float, complex)) or not isinstance(other, (float, complex)):
        return bool(mine != other)
    if mine == other or (mine != mine and other != other):  # the same, or both NaN
        return False
    largest = max(abs(mine), abs(other))
    return not (math.isfinite(largest) and abs(mine - other) <= SCALAR_TOLERANCE * largest)
