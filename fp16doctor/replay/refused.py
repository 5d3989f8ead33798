"""A step that ended in a call which raised, replayed up to that call and with it.

Must not know whether what it gives is good enough (``prescribe``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fp16doctor.errors import ReplayError
from fp16doctor.replay.calls import Arguments, tensors_in, written_refs
from fp16doctor.replay.changed import changed_calls
from fp16doctor.replay.constants import has_infinite
from fp16doctor.replay.environment import is_float_ref
from fp16doctor.replay.examine import random_state_kept
from fp16doctor.replay.solo import SoloPlayer
from fp16doctor.replay.trial import run_on
from fp16doctor.replay.values import is_float
from fp16doctor.schema.policy import PrecisionPolicy
from fp16doctor.schema.tape import OpCall, Tape


@dataclass(frozen=True, slots=True)
class RefusedTrial:
    """What a policy made of the call that raised."""

    raised: str = ""  # what it raises under this policy; "" where it runs
    failure: str = ""  # why the ops in front of it could not be replayed
    births: int = 0  # ops in front of it that made inf or NaN of finite inputs
    nonfinite: int = 0  # elements of its result; infinities that it was given do not count


def run_refused(tape: Tape, policy: PrecisionPolicy) -> RefusedTrial:
    """Replay ``tape`` (``Tape.refused``) under ``policy``, the call that raised included."""
    player = _Player(tape, policy)
    try:
        with random_state_kept(), torch.no_grad():
            trial = run_on(player)
    except ReplayError as error:
        if player.reached:
            return RefusedTrial(raised=error.message)
        return RefusedTrial(failure=error.message)
    if player.nonfinite is None:
        return RefusedTrial(failure="the call ran, and its result could not be looked at")
    births = [s for s in trial.births if s.index != tape.ops[-1].index]
    return RefusedTrial(births=len(births), nonfinite=player.nonfinite)


class _Player(SoloPlayer):
    """Looks at the result of the last call, which has no reference on the tape."""

    def __init__(self, tape: Tape, policy: PrecisionPolicy) -> None:
        super().__init__(tape, policy)
        self.reached = False
        self.nonfinite: int | None = None
        last = tape.ops[-1]
        self._last = changed_calls(tape, policy.constants).get(last.index, last)

    def play(self, call: OpCall, partner: Any = None) -> None:
        """Run one op under the policy."""
        self.reached = call.index == self._last.index
        super().play(call, partner)

    def take(self, call: OpCall, given: Arguments, result: Any) -> None:
        """Note what the last call gave."""
        super().take(call, given, result)
        if call.index == self._last.index:
            written = [self.env.tensor(r) for r in written_refs(call) if is_float_ref(r)]
            self.nonfinite = sum(map(self._bad, [*tensors_in(result), *written]))

    def _bad(self, value: Tensor) -> int:
        if not is_float(value):
            return 0
        infinite = has_infinite(self._last)
        return int((torch.isnan(value) if infinite else ~torch.isfinite(value)).sum())
