"""How large a residual stream is behind each of its additions, in fp32.

Must not know what the additions belong to.
"""

from __future__ import annotations

from itertools import pairwise
from math import log2
from statistics import median

import torch

from fp16doctor.replay.calls import outputs_of
from fp16doctor.replay.examine import random_state_kept
from fp16doctor.replay.lifetimes import spent
from fp16doctor.replay.solo import SoloPlayer
from fp16doctor.schema.policy import FP32
from fp16doctor.schema.tape import Tape


def growth_per_block(tape: Tape, additions: tuple[int, ...]) -> float | None:
    """Return the median binades that amax gains from one addition to the next.

    ``additions`` are indices of ops, in order. None where fewer than two of them are finite and
    not zero. Raises ReplayError where an op cannot be played.
    """
    found = [a for a in _amax_behind(tape, additions) if 0 < a < float("inf")]
    gains = [log2(b / a) for a, b in pairwise(found)]
    return median(gains) if gains else None


def _amax_behind(tape: Tape, additions: tuple[int, ...]) -> list[float]:
    player, gone, found = SoloPlayer(tape, FP32), spent(tape), []
    with random_state_kept(), torch.no_grad():
        for call in tape.ops[: max(additions, default=-1) + 1]:
            player.play(call)
            if call.index in additions:
                found.append(float(player.env.tensor(outputs_of(call)[0]).abs().max()))
            for number in gone.get(call.index, ()):
                player.env.drop(number)
    return found
