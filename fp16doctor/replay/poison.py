"""Inf and NaN that a step was given: in the batch, a parameter, whatever was made outside of it.

Must not know which of them matter (``diagnose``): a mask of −inf is given as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fp16doctor.replay.calls import float_inputs
from fp16doctor.replay.lockstep import Observer
from fp16doctor.replay.player import Player
from fp16doctor.replay.taint import Spread, Tracer, left_out
from fp16doctor.replay.values import nonfinite_code
from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.tape import OpCall, Tape, TensorRef
from fp16doctor.schema.trace import Poison

_HAS_NAN = 2
_SEEN_BY_THE_MODEL = frozenset({Phase.FORWARD, Phase.LOSS})
MAX_POISONS = 8  # of one step that are followed


@dataclass(frozen=True, slots=True)
class Given:
    """One storage that was non-finite when an op first read it, and nothing had written it."""

    index: int
    ref: TensorRef
    nan: bool


class PoisonObserver(Observer):
    """Looks at what the flagged ops read."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._written: set[int] = set()
        self.given: dict[int, Given] = {}  # by storage

    def before(self, index: int, run: Player, reference: Player | None) -> None:
        """Look before the op runs: it may write what it reads."""
        if reference is None or index >= len(self._tape.ops):
            return
        call = self._tape.ops[index]
        if call.nonfinite and not call.opaque and len(self.given) < MAX_POISONS:
            run.load_snapshots(call)
            for ref in float_inputs(call):
                self._look(index, ref, run)
        self._written.update(call.mutates)

    def _look(self, index: int, ref: TensorRef, run: Player) -> None:
        number = ref.storage
        foreign = (index, number) in self._tape.snapshots
        outside = number in self._tape.leaves and number not in self._written
        if number in self.given or not (foreign or outside) or not run.env.has(number):
            return
        code = nonfinite_code(run.env.tensor(ref))
        if code:
            self.given[number] = Given(index, ref, code == _HAS_NAN)


def poisons(tape: Tape, given: dict[int, Given], tracer: Tracer) -> Iterator[Poison]:
    """Yield what was given together with where it went, in tape order."""
    for found in sorted(given.values(), key=lambda g: g.index):
        spread = tracer.spread_of({found.ref.storage}, found.index)
        yield _poison(tape, found, spread)


def _poison(tape: Tape, found: Given, spread: Spread) -> Poison:
    leaf = tape.leaves.get(found.ref.storage)
    ops = [tape.ops[i] for i in sorted(spread.ops)]
    first = next((c for c in ops if c.site.phase in _SEEN_BY_THE_MODEL), tape.ops[found.index])
    return Poison(
        site=_clean(first.site),
        made_at=_clean(tape.ops[found.index].site),
        nan=found.nan,
        name=leaf.name if leaf is not None else None,
        is_parameter=leaf is not None and leaf.is_parameter,
        is_buffer=leaf is not None and leaf.is_buffer,
        is_batch=_leads_with(tape.batch, first),
        later_nonfinite=len(spread.ops),
        reaches=tuple(sorted(spread.reaches)),
        left=left_out(ops),
    )


def _clean(site: OpSite) -> OpSite:
    return replace(site, element=None, sample=None)


def _leads_with(batch: int | None, call: OpCall) -> bool:
    return any(r.shape[:1] == (batch,) for r in float_inputs(call))
