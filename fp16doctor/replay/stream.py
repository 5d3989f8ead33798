"""How large a residual stream is behind each of its additions, in fp32.

Must not know what the additions belong to.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf, log2
from statistics import median

import torch
from torch import Tensor

from fp16doctor.replay.calls import outputs_of
from fp16doctor.replay.examine import random_state_kept
from fp16doctor.replay.lifetimes import spent
from fp16doctor.replay.solo import SoloPlayer
from fp16doctor.schema.policy import FP32
from fp16doctor.schema.stream import StreamSize
from fp16doctor.schema.tape import Tape


def stream_behind(tape: Tape, additions: tuple[int, ...]) -> list[StreamSize]:
    """Return the size of the stream behind each addition; ``additions`` are indices of ops.

    Raises:
        ReplayError: an op cannot be played.
    """
    player, gone, found = SoloPlayer(tape, FP32), spent(tape), []
    with random_state_kept(), torch.no_grad():
        for call in tape.ops[: max(additions, default=-1) + 1]:
            player.play(call)
            if call.index in additions:
                found.append(_size(player.env.tensor(outputs_of(call)[0])))
            for number in gone.get(call.index, ()):
                player.env.drop(number)
    return found


def growth_of(sizes: Sequence[StreamSize]) -> float | None:
    """Return the median binades that amax gains from one addition to the next.

    None where fewer than two of them are finite and not zero.
    """
    found = [s.amax for s in sizes if 0 < s.amax < inf]
    gains = [log2(b / a) for a, b in pairwise(found)]
    return median(gains) if gains else None


def _size(value: Tensor) -> StreamSize:
    deviation = value.double().std(correction=0)
    return StreamSize(float(deviation), float(value.abs().max()))
