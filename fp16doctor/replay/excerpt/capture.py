"""The tensors that chosen ops were given in the run.

Must not know what they are wanted for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fp16doctor.replay.examine import random_state_kept
from fp16doctor.replay.lifetimes import spent
from fp16doctor.replay.player import Player
from fp16doctor.schema.policy import AS_RUN
from fp16doctor.schema.tape import Tape, TensorRef, refs_in


def capture(tape: Tape, wanted: frozenset[int]) -> dict[TensorRef, Tensor]:
    """Replay as run up to the last of ``wanted``; return copies of what those ops read.

    Raises what the replay raises (``casting.REFUSALS``).
    """
    found: dict[TensorRef, Tensor] = {}
    player, drops = Player(tape, AS_RUN), spent(tape)
    with random_state_kept(), torch.no_grad():
        for call in tape.ops[: max(wanted, default=-1) + 1]:
            if call.index in wanted:
                player.load_snapshots(call)
                for ref in refs_in((call.args, call.kwargs)):
                    if ref not in found and player.env.has(ref.storage):
                        found[ref] = player.env.tensor(ref).detach().clone()
            if tape.refused and call.index == len(tape.ops) - 1:
                break  # it raised
            player.play(call)
            for number in drops.get(call.index, ()):
                player.env.drop(number)
    return found
