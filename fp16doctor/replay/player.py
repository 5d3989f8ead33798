"""Plays a tape op by op under one policy.

Must not know what the values mean; ``lockstep`` compares two players.
"""

from __future__ import annotations

from typing import Any

from fp16doctor.replay import casting
from fp16doctor.replay.calls import (
    Arguments,
    addresses,
    arguments,
    invoke,
    paired,
    written_pairs,
)
from fp16doctor.replay.environment import Environment
from fp16doctor.replay.reduced import as_if_alike, lost_sums
from fp16doctor.schema.policy import AS_RUN, PrecisionPolicy
from fp16doctor.schema.tape import OpCall, Tape, refs_in


class Player:
    """One replay in progress."""

    def __init__(self, tape: Tape, policy: PrecisionPolicy) -> None:
        self.tape, self.policy = tape, policy
        self.env = Environment(tape, policy)
        self.pinned: dict[str, str] = {}  # op -> why its results were taken from the run
        self.scalars: dict[int, Any] = {}  # op index -> value of .item()
        self._sums = {} if policy == AS_RUN else lost_sums(tape)

    def play(self, call: OpCall, partner: Player | None = None) -> None:
        """Run one op; ``partner`` is the replay as run, already past this op.

        As run, it raises what the op raises; under another policy an op that does not run there
        falls back on the run's values (``casting``), and only a broken tape raises ReplayError.
        """
        self.load_snapshots(call)
        if call.opaque:
            return
        if self.env.identity:
            given = arguments(call, self.env.tensor)
            self.take(call, given, invoke(call, given))
        else:
            assert partner is not None, "another policy is played beside the run"
            casting.play(call, self, partner)

    def load_snapshots(self, call: OpCall) -> None:
        """Take over values that something untaped wrote."""
        if not self.tape.snapshots:
            return
        for ref in refs_in((call.args, call.kwargs)):
            key = call.index, ref.storage
            data, summed = self.tape.snapshots.get(key), self._sums.get(key)
            if data is None or (summed and as_if_alike(self.env, ref.storage, summed)):
                continue
            self.env.define(ref, data, share=False)

    def take(self, call: OpCall, given: Arguments, result: Any) -> None:
        """Make an op's results, and what it wrote into its arguments, the tape's values."""
        if isinstance(result, (bool, int, float, complex)):
            self.scalars[call.index] = result
            return
        self.env.bind(paired(call.outputs, result), addresses(given))
        for ref, tensor in written_pairs(call, given):
            self.env.write_back(ref, tensor)

    def pin(self, call: OpCall, reason: str) -> None:
        """Note that an op's results are not this policy's own."""
        self.pinned.setdefault(call.op, reason)
