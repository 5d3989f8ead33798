"""How far rounding alone may take a step: the reference with every result randomly disturbed.

A step whose gradient turns over when the last place of its values does is ill-conditioned; no
single replay of it says anything about a format.

Must not know acceptance.
"""

from __future__ import annotations

import torch

from fp16doctor.formats.number_format import get_format
from fp16doctor.replay.environment import torch_dtype
from fp16doctor.replay.solo import SoloPlayer
from fp16doctor.replay.values import HALF
from fp16doctor.schema.policy import FP32
from fp16doctor.schema.tape import OpCall, Tape, refs_in

_SEED = 20240607


class NoisyPlayer(SoloPlayer):
    """The fp32 replay in which every result recorded in 16 bits gets a relative error at random.

    The error is uniform within half a unit in the last place of ``format_name``. Whole numbers get
    none: a position or count that the format cannot hold is a fault, not noise.
    """

    def __init__(self, tape: Tape, format_name: str) -> None:
        super().__init__(tape, FP32)
        self._size = get_format(format_name).unit_roundoff
        self._generator = torch.Generator().manual_seed(_SEED)

    def play(self, call: OpCall, partner: object = None) -> None:
        """Run one op and disturb its results."""
        super().play(call)
        for ref in refs_in(call.outputs):
            if ref.dtype in HALF and ref.storage not in call.mutates:
                value = self.env.tensor(ref)
                if value.dtype is torch.float32 and torch_dtype(ref.dtype).is_floating_point:
                    noise = torch.rand(value.shape, generator=self._generator).to(value.device)
                    noise = self._size * (2 * noise - 1)
                    value.mul_(1 + noise.masked_fill_(value == value.round(), 0.0))
