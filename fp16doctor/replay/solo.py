"""Plays a tape under a candidate policy by itself, without a run beside it.

What a policy does to one op: a *kept* op gets its inputs in fp32 and leaves its outputs in fp32.
What leaves it in forward flows on as autocast would let it: promoted by ops of no list, cast
where the next matrix product, convolution or attention takes it. A gradient has the format of
the value it belongs to (``borders``): it is cast where the keep-list's own cast of its inputs
would do so.

Must not know acceptance or remedies.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fp16doctor.errors import ReplayError
from fp16doctor.replay import op_traits
from fp16doctor.replay.borders import Borders
from fp16doctor.replay.calls import Arguments, arguments, invoke
from fp16doctor.replay.casting import REFUSALS, run_in_recorded_format
from fp16doctor.replay.dataflow import Producers
from fp16doctor.replay.environment import ShapeDiffers, is_float_ref, torch_dtype
from fp16doctor.replay.keep import covers_tensor, kept_ops
from fp16doctor.replay.op_lists import takes_lower_precision
from fp16doctor.replay.player import Player
from fp16doctor.schema.location import Phase
from fp16doctor.schema.policy import PrecisionPolicy
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

_HALF = (torch.float16, torch.bfloat16)
_FAILURES = (ShapeDiffers, *REFUSALS)
_SEED_MAKERS = frozenset(("ones_like", "ones", "full_like", "full", "new_ones", "new_full"))


class SoloPlayer(Player):
    """A replay under any policy; raises ReplayError where an op cannot be played."""

    def __init__(self, tape: Tape, policy: PrecisionPolicy) -> None:
        super().__init__(tape, policy)
        self._kept = kept_ops(tape, policy.keep)
        self._borders = Borders()
        self._formats: dict[int, torch.dtype] = {}  # gradient -> format it has in truth
        self._from_kept_backward: set[int] = set()
        self._seeds = {m.index for m in tape.losses}
        if policy.keep:
            self._widen_stored()

    def play(self, call: OpCall, partner: Player | None = None) -> None:
        """Run one op under the policy."""
        self.load_snapshots(call)
        if call.opaque:
            return
        try:
            self._play(call)
        except _FAILURES as error:
            self._try_in_recorded_format(call, error)
        self._scale_seed(call)

    def _play(self, call: OpCall) -> None:
        if op_traits.is_draw(call.op):
            self._draw(call)
        elif op_traits.keeps_format(call.op) and not self.env.identity:
            run_in_recorded_format(call, self)
        elif call.index in self._kept:
            self._run_kept(call)
        else:
            self._run_cast(call)

    # -- ways to run -----------------------------------------------------------------------------

    def _run_kept(self, call: OpCall) -> None:
        """Inputs up, compute in fp32, outputs stay."""

        def up(ref: TensorRef) -> Tensor:
            value = self.env.tensor(ref)
            self._borders.note(call, ref, value.dtype)
            if ref.storage in call.mutates:
                return self.env.widened_in_place(ref, torch.float32)
            return value.float() if value.dtype in _HALF else value

        given = arguments(call, up, _to_fp32)
        self.take(call, given, invoke(call, given))
        if call.site.phase is Phase.BACKWARD:
            self._from_kept_backward.update(r.storage for r in refs_in(call.outputs))
            self._note_gradients(call)

    def _run_cast(self, call: OpCall) -> None:
        given: Arguments = arguments(call, lambda ref: self._cast(call, ref), self._dtype_of(call))
        try:
            result = invoke(call, given)
        except (RuntimeError, TypeError):
            given = arguments(call, self._recorded_or_wide, self.env.wide)
            result = invoke(call, given)
        self.take(call, given, result)
        if self._kept and call.site.phase is Phase.BACKWARD:
            self._note_gradients(call)

    def _cast(self, call: OpCall, ref: TensorRef) -> Tensor:
        """Return an argument of an op that is not kept, in the format in which it arrives."""
        value = self.env.tensor(ref)
        recorded = self.env.wide(torch_dtype(ref.dtype))
        if not self._kept or ref.storage in call.mutates:
            return value
        arrives = self._formats.get(ref.storage, value.dtype)
        if takes_lower_precision(call.op):
            return value.to(recorded)
        if ref.storage not in self._formats and ref.storage in self._from_kept_backward:
            arrives = recorded
        self._borders.note(call, ref, arrives)
        return value.to(arrives) if is_float_ref(ref) else value

    def _note_gradients(self, call: OpCall) -> None:
        for ref in refs_in(call.outputs):
            known = self._borders.of_gradient(call, ref)
            if known is not None:
                self._formats[ref.storage] = known

    def _dtype_of(self, call: OpCall):  # type: ignore[no-untyped-def]
        return self.env.wide

    def _recorded_or_wide(self, ref: TensorRef) -> Tensor:
        value = self.env.tensor(ref)
        return value.to(self.env.wide(torch_dtype(ref.dtype)))

    def _draw(self, call: OpCall) -> None:
        """Draw in the recorded format, with the recorded state."""
        if self.env.identity:
            self._run_cast(call)
        else:
            run_in_recorded_format(call, self)
