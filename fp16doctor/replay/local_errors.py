"""What every op of a recorded step added by itself: its result less the exact one.

Exact is the op in fp32 on the run's own inputs. An op errs that takes or makes 16-bit values: what
it sums up in 16 bits may leave it in fp32. Must not know what becomes of an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from fp16doctor.replay import op_traits
from fp16doctor.replay.calls import outputs_of
from fp16doctor.replay.dataflow import producers_of
from fp16doctor.replay.environment import torch_dtype
from fp16doctor.replay.lifetimes import spent
from fp16doctor.replay.local import local_results
from fp16doctor.replay.player import Player
from fp16doctor.schema.policy import AS_RUN, FP32
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

_HALF = (torch.float16, torch.bfloat16)
Results = dict[str, Tensor]  # parameter -> gradient in float32; "loss" where there is none
Errors = dict[int, list[tuple[TensorRef, Tensor]]]  # op -> what it added to each result, float32
LOSS = "loss"


@dataclass(slots=True)
class RunErrors:
    """One replay as run."""

    results: Results
    errors: Errors = field(default_factory=dict)


def run_errors(tape: Tape) -> RunErrors:
    """Replay the step as run up to its gradients; raises ReplayError where that fails.

    The caller holds the random state and gradient mode.
    """
    player, forget = Player(tape, AS_RUN), spent(tape)
    found = RunErrors({})
    for call in tape.ops[: end_of(tape)]:
        wanted = _results(call)
        late = op_traits.is_dropout(call.op)  # its mask is known once the run has drawn it
        exact = local_results(call, player, FP32) if wanted and not late else None
        player.play(call)
        if wanted and late:
            exact = local_results(call, player, FP32)
        added = [p for r in wanted if (p := _added(player, r, exact)) is not None]
        if added:
            found.errors[call.index] = added
        for number in forget.get(call.index, ()):
            player.env.drop(number)
    found.results = results_of(tape, player)
    return found


def end_of(tape: Tape) -> int:
    """Return the first op behind what an error is measured on: the gradients, else the loss."""
    if tape.backward_ends:
        return tape.backward_ends[-1]
    return tape.losses[-1].index if tape.losses else len(tape.ops)


def results_of(tape: Tape, player: Player) -> Results:
    """Return the gradients as they are now, else the loss."""
    producers, found = producers_of(tape), {}
    for number, name in tape.gradients.items():
        ref = producers.widest_view(number)
        if ref is not None and torch_dtype(ref.dtype).is_floating_point and player.env.has(number):
            found[name] = player.env.tensor(ref).float().clone()
    if not found and tape.losses and player.env.has(tape.losses[-1].ref.storage):
        found[LOSS] = player.env.tensor(tape.losses[-1].ref).float().reshape(-1).clone()
    return found


def footprint(tape: Tape) -> int:
    """Return the bytes of all results of the step in float32."""
    refs = (r for c in tape.ops[: end_of(tape)] if not is_view(c) for r in refs_in(c.outputs))
    return sum(4 * prod(r.shape) for r in refs)


def is_view(call: OpCall) -> bool:
    """Computes nothing: its results lie in storages that it was given."""
    given = {r.storage for r in refs_in((call.args, call.kwargs))}
    outs = refs_in(call.outputs)
    return not call.mutates and bool(outs) and all(r.storage in given for r in outs)


def _results(call: OpCall) -> list[TensorRef]:
    if call.opaque or is_view(call):
        return []
    if op_traits.is_uninitialised(call.op) or op_traits.is_draw(call.op):
        return []
    refs = refs_in((call.args, call.kwargs, call.outputs))
    if not any(torch_dtype(r.dtype) in _HALF for r in refs):
        return []
    return [r for r in outputs_of(call) if torch_dtype(r.dtype).is_floating_point]


def _added(
    player: Player, ref: TensorRef, exact: dict[TensorRef, Tensor] | None
) -> tuple[TensorRef, Tensor] | None:
    wanted = exact.get(ref) if exact is not None else None
    if wanted is None or not player.env.has(ref.storage):
        return None
    mine, wanted = player.env.tensor(ref).float(), wanted.float()
    if mine.shape != wanted.shape:
        return None
    same = (mine == wanted) | (mine.isnan() & wanted.isnan())
    error = torch.where(same, torch.zeros_like(mine), mine - wanted)
    return None if bool(same.all()) else (ref, error)
