"""A function's tape played as run and beside a reference, with every output of both kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replaying import tapes
from torch import Tensor

from fp16doctor.replay import op_traits
from fp16doctor.replay.lockstep import Observer, lockstep
from fp16doctor.replay.player import Player
from fp16doctor.schema.policy import FP32, PrecisionPolicy
from fp16doctor.schema.tape import OpCall, refs_in


class Beside(Observer):
    """Both runs of one tape."""

    def __init__(self, function: Callable[[], Any], policy: PrecisionPolicy = FP32) -> None:
        (self.tape,) = tapes(function)
        self._mine: dict[int, list[Tensor]] = {}
        self._other: dict[int, list[Tensor]] = {}
        self.result = lockstep(self.tape, policy, (self,))
        assert self.result.reference is not None
        self.reference = self.result.reference

    def after(self, call: OpCall, run: Player, reference: Player | None) -> None:
        assert reference is not None
        refs = refs_in(call.outputs)
        self._mine[call.index] = [run.env.tensor(r).clone() for r in refs]
        self._other[call.index] = [reference.env.tensor(r).clone() for r in refs]

    def outputs(self, op: str) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs of the only op of a name: as run, in the reference."""
        (index,) = [c.index for c in self.tape.ops if op_traits.base(c.op) == op]
        return self._mine[index], self._other[index]

    def last(self) -> tuple[Tensor, Tensor]:
        """The first output of the last op: as run, in the reference."""
        index = self.tape.ops[-1].index
        return self._mine[index][0], self._other[index][0]

    def pins(self) -> dict[str, str]:
        """Op -> why its results were taken from the run."""
        return {op_traits.base(op): reason for op, reason in self.reference.pinned.items()}
