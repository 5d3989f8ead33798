"""Plays a tape under a candidate policy by itself, without a run beside it.

What a policy does to one op: a *kept* op gets its inputs in fp32 and leaves its outputs in fp32.
What leaves it in forward flows on as autocast would let it: promoted by ops of no list, cast
where the next matrix product, convolution or attention takes it. A gradient has the format of
the value it belongs to (``borders``): it is cast where the keep-list's own cast of its inputs
would do so. Under a policy that casts back, what leaves is rounded to its recorded
format (``returned``).

Must not know acceptance or remedies.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fp16doctor.errors import ReplayError
from fp16doctor.replay import op_traits
from fp16doctor.replay.borders import Borders
from fp16doctor.replay.calls import Arguments, ToDtype, arguments, invoke
from fp16doctor.replay.casting import REFUSALS, dropped, run_in_recorded_format
from fp16doctor.replay.changed import changed_calls
from fp16doctor.replay.dataflow import producers_of
from fp16doctor.replay.environment import ShapeDiffers, is_float_ref, torch_dtype
from fp16doctor.replay.keep import covers_tensor, kept_ops
from fp16doctor.replay.op_lists import takes_lower_precision
from fp16doctor.replay.op_traits import base
from fp16doctor.replay.parameters import parameter_numbers
from fp16doctor.replay.player import Player
from fp16doctor.replay.returned import Returned
from fp16doctor.schema.location import Phase
from fp16doctor.schema.policy import PrecisionPolicy
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

_HALF = (torch.float16, torch.bfloat16)
_NO_SEED = (
    "another loss scale cannot be tried: backward starts with a gradient of the script's own; "
    "scale that one in the script"
)
_FAILURES = (ShapeDiffers, *REFUSALS)
_SEED_MAKERS = frozenset(("ones_like", "ones", "full_like", "full", "new_ones", "new_full"))


class SoloPlayer(Player):
    """A replay under any policy; raises ReplayError where an op cannot be played."""

    def __init__(self, tape: Tape, policy: PrecisionPolicy) -> None:
        super().__init__(tape, policy)
        self._kept = kept_ops(tape, policy.keep)
        self._changed = changed_calls(tape, policy.constants)
        self._borders = Borders()
        self._formats: dict[int, torch.dtype] = {}  # gradient -> format it has in truth
        self._from_kept_backward: set[int] = set()
        self._returned = Returned(self.env) if policy.casts_back else None
        self._seeds = {m.index for m in tape.losses}
        if policy.scale_factor != 1.0 and not self._seeds:
            raise ReplayError(_NO_SEED, "trial-failed")
        if policy.keep or policy.stores_fp32:
            self._widen_stored()
            self._formats_of_gradients()

    def play(self, call: OpCall, partner: Player | None = None) -> None:
        """Run one op under the policy."""
        self.load_snapshots(call)
        if call.opaque:
            return
        call = self._changed.get(call.index, call)
        try:
            self._play(call)
        except _FAILURES as error:
            self._try_in_recorded_format(call, error)
        self._scale_seed(call)

    def _play(self, call: OpCall) -> None:
        if self._returned is not None:
            self._cross(call, self._returned)
        if op_traits.is_draw(call.op):
            self._draw(call)
        elif op_traits.is_dropout(call.op) and (self._kept or not self.env.identity):
            self._dropout(call)
        elif op_traits.keeps_format(call.op) and not self.env.identity:
            run_in_recorded_format(call, self)
        elif call.index in self._kept:
            self._run_kept(call)
        else:
            self._run_cast(call)

    def _cross(self, call: OpCall, returned: Returned) -> None:
        """Round what leaves a kept place; the kept ops' own backward gets what they had."""
        kept = call.index in self._kept
        returned.show(refs_in((call.args, call.kwargs)), inside=kept)
        if kept and call.site.phase is not Phase.BACKWARD:
            returned.made(refs_in(call.outputs))

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
        given: Arguments = arguments(call, lambda ref: self._cast(call, ref), self._dtypes(call))
        try:
            result = invoke(call, given)
        except (RuntimeError, TypeError):
            given = arguments(call, self._recorded_or_wide, self.env.wide)
            result = invoke(call, given)
        self.take(call, given, result)
        self._note_gradients(call)

    def _cast(self, call: OpCall, ref: TensorRef) -> Tensor:
        """Return an argument of an op that is not kept, in the format in which the op takes it."""
        value = self.env.tensor(ref)
        recorded = self.env.wide(torch_dtype(ref.dtype))
        self._borders.note(call, ref, value.dtype)
        if ref.storage in call.mutates or not is_float_ref(ref):
            return value
        return value.to(recorded if takes_lower_precision(call.op) else self._arrives(ref, value))

    def _arrives(self, ref: TensorRef, value: Tensor) -> torch.dtype:
        """Return the format in which autograd hands a gradient on; of any other value its own."""
        known = self._formats.get(ref.storage)
        if known is None and ref.storage in self._from_kept_backward:
            return torch_dtype(ref.dtype)
        return known or value.dtype

    def _dtypes(self, call: OpCall) -> ToDtype:
        """Return what becomes of dtype arguments; a cast in backward follows its forward value."""
        if base(call.op) == "_to_copy" and self._kept:
            for ref in refs_in(call.outputs):
                known = self._borders.of_gradient(call, ref)
                if known is not None:
                    return lambda dtype: known
        return self.env.wide

    def _note_gradients(self, call: OpCall) -> None:
        if self._kept and call.site.phase is Phase.BACKWARD:
            for ref in refs_in(call.outputs):
                known = self._borders.of_gradient(call, ref)
                if known is not None and ref.storage not in self.tape.gradients:
                    self._formats[ref.storage] = known

    def gradient(self, ref: TensorRef) -> Tensor:
        """Return a gradient in the format in which the optimizer gets it."""
        value = self.env.tensor(ref)
        return value.to(self._arrives(ref, value)) if is_float_ref(ref) else value

    def _recorded_or_wide(self, ref: TensorRef) -> Tensor:
        value = self.env.tensor(ref)
        return value.to(self.env.wide(torch_dtype(ref.dtype)))

    def _draw(self, call: OpCall) -> None:
        """Draw in the recorded format, with the recorded state."""
        if self._kept or not self.env.identity:
            run_in_recorded_format(call, self)
        else:
            self._run_cast(call)

    def _dropout(self, call: OpCall) -> None:
        """Draw the mask in the recorded format, apply it to the policy's own values."""
        refs = refs_in(call.outputs)
        _, mask = invoke(call, arguments(call, self.env.recorded_form))
        value = self.env.tensor(call.args[0])
        self._borders.note(call, call.args[0], value.dtype)
        wide = value.float() if call.index in self._kept and value.dtype in _HALF else value
        self.env.bind([(refs[0], dropped(call, wide, mask)), (refs[1], mask)], set())

    def _try_in_recorded_format(self, call: OpCall, error: Exception) -> None:
        try:
            run_in_recorded_format(call, self)
        except _FAILURES as again:
            raise ReplayError(
                f"{call.op} cannot be played under {self.policy.name}: {error}; {again}",
                "trial-failed",
            ) from again

    # -- stored tensors and the loss scale -------------------------------------------------------

    def _widen_stored(self) -> None:
        """Store parameters and buffers of kept modules in fp32, as ``module.float()`` does.

        Under a policy that stores fp32, whatever trains or is written: optimizer state too.
        """
        producers = producers_of(self.tape)
        for number, leaf in self.tape.leaves.items():
            ref = producers.widest_view(number)
            if ref is None or torch_dtype(ref.dtype) not in _HALF:
                continue
            carried = leaf.is_parameter or bool(producers.writers(number))
            names = (leaf.name, *leaf.also)
            kept = any(covers_tensor(rule, n) for rule in self.policy.keep for n in names)
            if kept or (self.policy.stores_fp32 and carried):
                value = self.env.tensor(ref).float()
                self.env.override(number, value, ref, torch_dtype(ref.dtype))

    def _formats_of_gradients(self) -> None:
        """The gradient of a parameter has the parameter's format."""
        numbers, producers = parameter_numbers(self.tape), producers_of(self.tape)
        for gradient, name in self.tape.gradients.items():
            ref = producers.widest_view(numbers.get(name, -1))
            if ref is not None:
                self._formats[gradient] = self.env.tensor(ref).dtype

    def _scale_seed(self, call: OpCall) -> None:
        """Multiply the gradient backward starts from: another loss scale."""
        if self.policy.scale_factor == 1.0 or call.index not in self._seeds:
            return
        if base(call.op) not in _SEED_MAKERS:
            raise ReplayError(_NO_SEED, "trial-failed")
        for ref in refs_in(call.outputs):
            self.env.tensor(ref).mul_(self.policy.scale_factor)


def _to_fp32(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in _HALF else dtype
