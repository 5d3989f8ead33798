"""Plays a tape under a candidate policy by itself, without a run beside it.

What a policy does to one op: a *kept* op gets its inputs in fp32 and leaves its outputs in fp32.
What leaves it in forward flows on as autocast would let it: promoted by ops of no list, cast
where the next matrix product, convolution or attention takes it. What leaves it in backward is
cast where the keep-list's own cast of its inputs would do so, at the border.

Must not know acceptance or remedies.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fp16doctor.errors import ReplayError
from fp16doctor.replay import op_traits
from fp16doctor.replay.calls import Arguments, arguments, invoke
from fp16doctor.replay.casting import REFUSALS, run_in_recorded_format
from fp16doctor.replay.environment import ShapeDiffers, torch_dtype
from fp16doctor.replay.keep import kept_ops
from fp16doctor.replay.op_lists import takes_lower_precision
from fp16doctor.replay.player import Player
from fp16doctor.schema.location import Phase
from fp16doctor.schema.policy import PrecisionPolicy
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

_HALF = (torch.float16, torch.bfloat16)
_FAILURES = (ShapeDiffers, *REFUSALS)


class SoloPlayer(Player):
    """A replay under any policy; raises ReplayError where an op cannot be played."""

    def __init__(self, tape: Tape, policy: PrecisionPolicy) -> None:
        super().__init__(tape, policy)
        self._kept = kept_ops(tape, policy.keep)
        self._from_kept_backward: set[int] = set()
        self._seeds = {m.index: m.ref for m in tape.losses}

    def play(self, call: OpCall, partner: Player | None = None) -> None:
        """Run one op under the policy."""
        self.load_snapshots(call)
        if call.opaque:
            return
        try:
            if op_traits.is_draw(call.op):
                self._draw(call)
            elif op_traits.keeps_format(call.op) and not self.env.identity:
                run_in_recorded_format(call, self)
            elif call.index in self._kept:
                self._run_kept(call)
            else:
                self._run_cast(call)
        except _FAILURES as error:
            self._try_in_recorded_format(call, error)
        self._scale_seed(call)

    # -- ways to run -----------------------------------------------------------------------------

    def _run_kept(self, call: OpCall) -> None:
        """Inputs up, compute in fp32, outputs stay."""

        def up(ref: TensorRef) -> Tensor:
            value = self.env.tensor(ref)
            if ref.storage in call.mutates:
                return self.env.widened_in_place(ref, torch.float32)
            return value.float() if value.dtype in _HALF else value

        given = arguments(call, up, _to_fp32)
        self.take(call, given, invoke(call, given))
        if call.site.phase is Phase.BACKWARD:
            self._from_kept_backward.update(r.storage for r in refs_in(call.outputs))

    def _run_cast(self, call: OpCall) -> None:
        lower = takes_lower_precision(call.op)

        def cast(ref: TensorRef) -> Tensor:
            value = self.env.tensor(ref)
            recorded = self.env.wide(torch_dtype(ref.dtype))
            if value.dtype is recorded or ref.storage in call.mutates:
                return value
            at_border = ref.storage in self._from_kept_backward
            return value.to(recorded) if lower or at_border else value

        given: Arguments = arguments(call, cast, self.env.wide)
        try:
            result = invoke(call, given)
        except (RuntimeError, TypeError):
            given = arguments(call, self._recorded_or_wide, self.env.wide)
            result = invoke(call, given)
        self.take(call, given, result)

    def _recorded_or_wide(self, ref: TensorRef) -> Tensor:
        value = self.env.tensor(ref)
        return value.to(self.env.wide(torch_dtype(ref.dtype)))

    def _draw(self, call: OpCall) -> None:
        """Draw in the recorded format, with the recorded state."""
        if self.env.identity:
            self._run_cast(call)
        else:
            run_in_recorded_format(call, self)

    def _try_in_recorded_format(self, call: OpCall, error: Exception) -> None:
        try:
            run_in_recorded_format(call, self)
        except _FAILURES as again:
            raise ReplayError(
                f"{call.op} cannot be played under {self.policy.name}: {error}; {again}",
                "trial-failed",
            ) from again

    def _scale_seed(self, call: OpCall) -> None:
        """Multiply the gradient backward starts from: another loss scale."""
        if self.policy.scale_factor != 1.0 and call.index in self._seeds:
            for ref in refs_in(call.outputs):
                self.env.tensor(ref).mul_(self.policy.scale_factor)


def _to_fp32(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in _HALF else dtype
