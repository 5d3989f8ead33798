"""Where the non-finite values of one birth went: later ops, the first NaN, the sinks.

Must not know why they were born.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fp16doctor.replay.lockstep import BirthFacts, LockstepResult
from fp16doctor.replay.sinks import SinkObserver
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.tape import OpCall, Tape, refs_in


@dataclass(slots=True)
class Spread:
    """What became of one birth."""

    storages: set[int] = field(default_factory=set)
    ops: set[int] = field(default_factory=set)
    first_nan: OpSite | None = None
    reaches: set[str] = field(default_factory=set)


def spread(
    tape: Tape, birth: BirthFacts, result: LockstepResult, sinks: SinkObserver, stops: set[int]
) -> Spread:
    """Follow ``birth`` along the tape; ``stops`` are births that stand for themselves."""
    out = Spread(storages=_bad_storages(birth.call, result))
    if birth.n_nan:
        out.first_nan = birth.call.site
    losses = {m.index: m for m in tape.losses}
    _sink_marks(tape, birth.call.index, out, sinks)
    for call in tape.ops[birth.call.index + 1 :]:
        mark = losses.get(call.index)
        if mark is not None and mark.ref.storage in out.storages:
            out.reaches.add("loss")
        if call.nonfinite and call.index not in stops and _reads(call, out.storages):
            out.ops.add(call.index)
            out.storages |= _bad_storages(call, result)
            if call.nan and out.first_nan is None:
                out.first_nan = call.site
        _sink_marks(tape, call.index, out, sinks)
    last = losses.get(len(tape.ops))
    if last is not None and last.ref.storage in out.storages:
        out.reaches.add("loss")
    for sink in ("parameters", "buffers"):
        if out.storages & sinks.bad(sink):
            out.reaches.add(sink)
    return out


def _sink_marks(tape: Tape, index: int, out: Spread, sinks: SinkObserver) -> None:
    """Look at the gradients right behind the last op of the last backward."""
    ends = tape.backward_ends
    if ends and index + 1 == ends[-1] and out.storages & sinks.bad("gradients"):
        out.reaches.add("gradients")


def _reads(call: OpCall, storages: set[int]) -> bool:
    return any(r.storage in storages for r in refs_in((call.args, call.kwargs)))


def _bad_storages(call: OpCall, result: LockstepResult) -> set[int]:
    codes = result.codes.get(call.index)
    if codes is not None:
        return {n for n, code in codes.items() if code}
    return {r.storage for r in refs_in(call.outputs)} | set(call.mutates)
