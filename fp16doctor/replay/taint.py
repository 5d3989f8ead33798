"""Where the non-finite values of one birth went: later ops, the first NaN, the sinks.

By storage: an op that reads a storage a value was left in passes it on, if anything it makes is
non-finite. Must not know why the values were born.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

from fp16doctor.replay import op_traits
from fp16doctor.replay.births import BirthFacts
from fp16doctor.replay.calls import outputs_of, written_refs
from fp16doctor.replay.environment import is_float_ref
from fp16doctor.replay.feeds import operands
from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.tape import OpCall, Tape, refs_in

Codes = dict[int, dict[int, int]]  # op -> storage it made -> 0 finite, 1 inf, 2 NaN
BadIn = Callable[[str], set[int]]  # sink -> its storages that are non-finite as run


_EARLY = frozenset({Phase.FORWARD, Phase.LOSS})


def left_out(ops: list[OpCall]) -> bool:
    """Whether non-finite ops end in one number in front of backward: a loss that no backward took.

    ``ops`` are a birth or the first reader, and all that inherit, in tape order.
    """
    if not ops or ops[-1].site.phase not in _EARLY:
        return False
    floats = [r for r in outputs_of(ops[-1]) if is_float_ref(r)]
    return bool(floats) and all(r.shape == () for r in floats)


@dataclass(slots=True)
class Spread:
    """What became of one birth."""

    storages: set[int] = field(default_factory=set)  # that hold it at the moment
    ops: set[int] = field(default_factory=set)
    first_nan: OpSite | None = None
    reaches: set[str] = field(default_factory=set)
    healer: OpSite | None = None  # last op that read it and made finite numbers of it


class Tracer:
    """Follows births along one tape."""

    def __init__(self, tape: Tape, codes: Codes, bad_in: BadIn) -> None:
        self._tape, self._codes, self._bad_in = tape, codes, bad_in
        self.cut_at = _cut_at(tape)
        self._sizes: dict[int, int] = {}  # storage -> elements of its widest view
        for call in tape.ops:
            for ref in refs_in((call.args, call.kwargs, call.outputs)):
                self._sizes[ref.storage] = max(self._sizes.get(ref.storage, 0), prod(ref.shape))

    def spread(self, birth: BirthFacts, stops: set[int]) -> Spread:
        """Follow ``birth``; ``stops`` are births that stand for themselves."""
        out = Spread(storages=self._bad_storages(birth.call))
        if birth.n_nan:
            out.first_nan = birth.call.site
        return self._follow(out, birth.call.index + 1, stops)

    def spread_of(self, storages: set[int], first: int) -> Spread:
        """Follow what these storages hold when op ``first`` is about to run."""
        return self._follow(Spread(storages=set(storages)), first, set())

    def _follow(self, out: Spread, first: int, stops: set[int]) -> Spread:
        for call in self._tape.ops[first:]:
            self._meet_marks(call.index, out)
            if call.index in stops:
                continue
            inherited = self._inherited(call, out.storages)
            if inherited:
                self._pass_on(call, inherited, out)
                continue
            if _heals(call, out.storages):
                out.healer = call.site
            out.storages -= self._cleaned(call)
        self._meet_marks(len(self._tape.ops), out)
        if self.cut_at is not None and out.storages & self._bad_storages(self.cut_at):
            out.reaches.add("gradients")
        for sink in ("parameters", "buffers"):
            if out.storages & self._bad_in(sink):
                out.reaches.add(sink)
        return out

    def _pass_on(self, call: OpCall, inherited: set[int], out: Spread) -> None:
        out.ops.add(call.index)
        out.storages |= inherited
        if call.nan and out.first_nan is None:
            out.first_nan = call.site

    def _meet_marks(self, index: int, out: Spread) -> None:
        """Look at the losses and gradients that lie in front of op ``index``."""
        for mark in self._tape.losses:
            if mark.index == index and mark.ref.storage in out.storages:
                out.reaches.add("loss")
        ends = self._tape.backward_ends
        if ends and index == ends[-1] and out.storages & self._bad_in("gradients"):
            out.reaches.add("gradients")

    def _bad_storages(self, call: OpCall) -> set[int]:
        codes = self._codes.get(call.index)
        if codes is not None:
            return {n for n, code in codes.items() if code}
        return {r.storage for r in outputs_of(call)}

    def _inherited(self, call: OpCall, tainted: set[int]) -> set[int]:
        """Return the non-finite storages a call makes of tainted ones."""
        if not call.nonfinite or not _reads(call, tainted):
            return set()
        bad = self._bad_storages(call)
        if not op_traits.is_foreach(call.op):
            return bad
        found = set()
        for ref in outputs_of(call):
            feeding = operands(call, ref, (0,) * len(ref.shape))
            if ref.storage in bad and any(o.ref.storage in tainted for o in feeding):
                found.add(ref.storage)
        return found

    def _cleaned(self, call: OpCall) -> set[int]:
        """Return the storages that a call without non-finite results writes as a whole."""
        if call.nonfinite or call.opaque:
            return set()
        return {r.storage for r in written_refs(call) if prod(r.shape) >= self._sizes[r.storage]}


def _cut_at(tape: Tape) -> OpCall | None:
    """Return the last op of a backward that ended the script: anomaly mode raises behind a NaN.

    Its gradient is the last there is; none came to a parameter.
    """
    if not tape.ops or tape.ops[-1].site.phase is not Phase.BACKWARD:
        return None
    made = (c for c in reversed(tape.ops) if any(is_float_ref(r) for r in outputs_of(c)))
    last = next(made, None)
    return last if last is not None and last.nonfinite else None


def _heals(call: OpCall, tainted: set[int]) -> bool:
    """Tell whether a call makes finite numbers of tainted ones: a comparison makes none."""
    made = any(is_float_ref(r) for r in outputs_of(call))
    return made and not call.nonfinite and _reads(call, tainted)


def _reads(call: OpCall, storages: set[int]) -> bool:
    return any(r.storage in storages for r in refs_in((call.args, call.kwargs)))
