"""How much of a step's gradient error is gone once one sum has its exact value.

The step is replayed in fp32 with the errors of all its ops put back in (``blame``), and the result
of one op is put right: what it carried of earlier errors and what it added are both gone, all
other errors stay.

Must not know which sums are worth asking about.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fp16doctor.errors import ReplayError
from fp16doctor.replay.blame import FAITHFUL, MAX_BYTES, MAX_OPS, apart, replayed
from fp16doctor.replay.examine import random_state_kept
from fp16doctor.replay.local_errors import LOSS, footprint, run_errors
from fp16doctor.replay.solo import SoloPlayer
from fp16doctor.schema.policy import FP32
from fp16doctor.schema.precision import AmplifiedError
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in


def with_shares(tape: Tape, found: tuple[AmplifiedError, ...]) -> tuple[AmplifiedError, ...]:
    """Return ``found`` with the share that each makes; without, where it cannot be measured."""
    if not found or len(tape.ops) > MAX_OPS or footprint(tape) > MAX_BYTES:
        return found
    try:
        with random_state_kept(), torch.no_grad():
            return _measured(tape, found)
    except ReplayError:
        return found


def _measured(tape: Tape, found: tuple[AmplifiedError, ...]) -> tuple[AmplifiedError, ...]:
    run = run_errors(tape)
    exact = replayed(tape, {}, ())
    every = replayed(tape, run.errors, run.errors)
    whole = apart(exact, every)
    finite = all(bool(torch.isfinite(t).all()) for t in (*run.results.values(), *exact.values()))
    if LOSS in exact or not finite or not whole > 0:
        return found
    if not apart(exact, run.results, every) <= FAITHFUL * apart(exact, run.results):
        return found  # ill-conditioned: the parts do not add up to the run
    values = _values(tape, [tape.ops[a.site.index] for a in found])
    out = []
    for item in found:
        ref, value = values[item.site.index]
        left = apart(exact, replayed(tape, run.errors, run.errors, {item.site.index: (ref, value)}))
        out.append(replace(item, share=1 - (left / whole) ** 2, whole=whole, left=left))
    return tuple(out)


def _values(tape: Tape, calls: list[OpCall]) -> dict[int, tuple[TensorRef, Tensor]]:
    """Return what the ops give in fp32 throughout."""
    wanted = {c.index: refs_in(c.outputs)[0] for c in calls}
    player, values = SoloPlayer(tape, FP32), {}
    for call in tape.ops[: max(wanted) + 1]:
        player.play(call)
        if call.index in wanted:
            ref = wanted[call.index]
            values[call.index] = ref, player.env.tensor(ref).clone()
    return values
