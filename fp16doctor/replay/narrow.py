"""A step recorded in a wide format as CUDA's autocast would run it in fp16 or bf16.

Matrix products, convolutions and attention take their inputs in the format and leave their result
in it; ops of the fp32 list cast up; everything else runs in what it is given. Products are
computed in fp32 and rounded once, as a matrix unit does; what happens inside a kernel is not seen.

Source: autocast's op lists for CUDA, aten/src/ATen/autocast_mode.h of torch 2.13.
Must not know what the result is held against.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fp16doctor.formats.number_format import get_format
from fp16doctor.replay import op_traits
from fp16doctor.replay.calls import arguments, invoke
from fp16doctor.replay.casting import run_in_recorded_format
from fp16doctor.replay.environment import torch_dtype
from fp16doctor.replay.op_lists import runs_in_fp32, takes_lower_precision
from fp16doctor.replay.solo import SoloPlayer
from fp16doctor.schema.location import Phase
from fp16doctor.schema.policy import PrecisionPolicy
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

_HALF = (torch.float16, torch.bfloat16)


class NarrowPlayer(SoloPlayer):
    """Autocast to ``format_name`` over a tape whose ops ran in something wider."""

    def __init__(self, tape: Tape, format_name: str, scale_factor: float = 1.0) -> None:
        super().__init__(tape, PrecisionPolicy(format_name, scale_factor=scale_factor))
        self._narrow = torch_dtype(get_format(format_name).dtype_name or "float16")

    def _run_cast(self, call: OpCall) -> None:
        if op_traits.keeps_format(call.op):
            # Backward reads a workspace that forward laid out for its format: both keep theirs.
            run_in_recorded_format(call, self)
        elif call.site.phase is Phase.OPTIMIZER or op_traits.is_draw(call.op):
            self._run_wide(call)
        elif takes_lower_precision(call.op):
            self._run_rounded(call)
        elif runs_in_fp32(call.op):
            self._run_wide(call)
        else:
            super()._run_cast(call)

    def _run_wide(self, call: OpCall) -> None:
        def up(ref: TensorRef) -> Tensor:
            value = self.env.tensor(ref)
            return value.float() if value.dtype in _HALF else value

        given = arguments(call, up)
        self.take(call, given, invoke(call, given))

    def _run_rounded(self, call: OpCall) -> None:
        """Inputs and result in the format, arithmetic in fp32."""

        def down(ref: TensorRef) -> Tensor:
            value = self.env.tensor(ref)
            if not value.is_floating_point() or ref.storage in call.mutates:
                return value
            return value.to(self._narrow).float()

        given = arguments(call, down)
        result = invoke(call, given)
        self.take(call, given, self._rounded(result))

    def _rounded(self, result: object) -> object:
        if isinstance(result, Tensor):
            return result.to(self._narrow) if result.dtype is torch.float32 else result
        if isinstance(result, (list, tuple)):
            return [self._rounded(r) for r in result]
        return result


def is_wide(tape: Tape, format_name: str) -> bool:
    """Tell whether a step ran without ``format_name``, so that there is something to foretell."""
    wanted = get_format(format_name).dtype_name
    return all(r.dtype != wanted for c in tape.ops for r in refs_in(c.outputs))
