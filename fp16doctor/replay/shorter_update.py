"""How large a step's update is, and what share of it would have lowered the loss of its own batch.

An update along a direction of descent lowers the loss of the batch that it was computed on once it
is short enough; one that raises it is too long. The update of SGD, Adam and their kin is
proportional to the learning rate, so that a share of the update is the same share of the rate.

Source: Nocedal and Wright, Numerical Optimization, section 3.1. Must not know when a loss is off.
"""

from __future__ import annotations

from math import isfinite, sqrt

from torch import Tensor

from fp16doctor.errors import ReplayError
from fp16doctor.replay.parameters import parameter_values
from fp16doctor.replay.scales import scale_of
from fp16doctor.replay.trial import loss_at, run_to_update
from fp16doctor.schema.policy import FP32
from fp16doctor.schema.tape import Tape
from fp16doctor.schema.trace import ShorterUpdate

SHARES = (1e-1, 1e-2, 1e-3, 1e-4)  # of the update, tried in this order


def shorter_update(tape: Tape) -> ShorterUpdate | None:
    """Return the update's size over that of the weights, and the first share that lowers the loss.

    All of it in fp32, losses without the loss scale. None where the step cannot be played.
    """
    try:
        moves, start = run_to_update(tape, FP32).updates, parameter_values(tape)
        before = loss_at(tape, {})
        size = _norm({n: start[n] for n in moves})
        if before is None or not moves or not size:
            return None
        ratio, scale = _norm(moves) / size, scale_of(tape)
        for share in SHARES:
            after = loss_at(tape, {n: start[n] + share * move for n, move in moves.items()})
            if after is not None and isfinite(after) and after < before:
                return ShorterUpdate(ratio, before / scale, share, after / scale)
        return ShorterUpdate(ratio, before / scale)
    except ReplayError:
        return None


def _norm(tensors: dict[str, Tensor]) -> float:
    return sqrt(sum(float(t.double().square().sum()) for t in tensors.values()))
