"""How much of its updates a tensor would take if it were stored in fp32.

Must not know remedies.
"""

from __future__ import annotations

from collections import Counter

import torch

from fp16doctor.errors import ReplayError
from fp16doctor.replay.dataflow import producers_of
from fp16doctor.replay.environment import torch_dtype
from fp16doctor.replay.examine import random_state_kept
from fp16doctor.replay.parameters import parameter_numbers
from fp16doctor.replay.rebound import rebounds
from fp16doctor.replay.solo import SoloPlayer
from fp16doctor.replay.updates import carries_state, is_weight
from fp16doctor.replay.values import HALF
from fp16doctor.schema.policy import FP32, FP64, PrecisionPolicy
from fp16doctor.schema.tape import Tape

REALISED = 0.9  # fraction of the intended updates that storage must take
REALISED_FRACTION = "realised fraction"

Finals = dict[int, tuple[torch.Tensor, torch.Tensor]]  # storage -> (before, after)


def realised_in_fp32(
    tapes: tuple[Tape, ...], *, parameters: bool, policy: PrecisionPolicy = FP32
) -> tuple[float | None, tuple[int, ...]]:
    """Return (⟨Δ32, Δ64⟩ / ‖Δ64‖², steps it was measured on), over carried 16-bit tensors.

    ``policy`` says what they are stored in: fp32, or another 16-bit format. They are the
    parameters, or all that are none: averages, optimizer state, accumulators.
    """
    dot = norm2 = 0.0
    steps = []
    for tape in tapes:
        try:
            narrow, wide = (_finals(tape, p, parameters) for p in (policy, FP64))
        except ReplayError:
            continue
        for number, (start, end) in wide.items():
            delta, mine = end - start, narrow[number][1].double() - narrow[number][0].double()
            dot, norm2 = dot + float((delta * mine).sum()), norm2 + float((delta**2).sum())
        steps.append(tape.step)
    return (dot / norm2 if norm2 > 0 else None), tuple(steps)


def _finals(tape: Tape, policy: PrecisionPolicy, parameters: bool) -> Finals:
    producers = producers_of(tape)
    watched = {}
    for number in tape.leaves:
        if is_weight(tape, number) is not parameters:
            continue
        ref, writers = producers.widest_view(number), producers.writers(number)
        half = ref is not None and torch_dtype(ref.dtype) in (torch.float16, torch.bfloat16)
        if ref is not None and half and writers and carries_state(tape, number, writers):
            watched[number] = ref
    pairs = () if parameters else tuple(rebounds(tape, producers))
    with random_state_kept(), torch.no_grad():
        player = SoloPlayer(tape, policy)
        before = {n: player.env.tensor(r).clone() for n, r in watched.items()}
        before |= {p.new.storage: player.env.tensor(p.old).clone() for p in pairs}
        watched |= {p.new.storage: p.new for p in pairs}
        for call in tape.ops:
            player.play(call)
        return {n: (before[n], player.env.tensor(r)) for n, r in watched.items()}


def trains_half_parameters(tape: Tape) -> bool:
    """Tell whether a parameter that gets a gradient is stored in 16 bits."""
    return bool(stored_in(tape))


def stored_in(tape: Tape) -> str:
    """Return the torch name of the 16-bit format of the most trained parameters, "" for none."""
    producers, trained = producers_of(tape), set(tape.gradients.values())
    numbers = (n for name, n in parameter_numbers(tape).items() if name in trained)
    views = map(producers.widest_view, numbers)
    found = Counter(v.dtype for v in views if v is not None and v.dtype in HALF)
    return found.most_common(1)[0][0] if found else ""
