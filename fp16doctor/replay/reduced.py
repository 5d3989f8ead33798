"""Gradients summed over ranks, under a policy that the run did not have.

The other ranks are not on the tape: a finite sum is taken from the run, and where the run's sum is
inf or NaN every rank is taken to add what this one adds. Must not know policies.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fp16doctor.replay.environment import Environment, is_float_ref, torch_dtype
from fp16doctor.replay.values import nonfinite_code
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

_SUMS = ("c10d.allreduce_.", "c10d.allreduce_coalesced_.")


@dataclass(frozen=True, slots=True)
class Sum:
    """One storage that ranks have summed into."""

    refs: tuple[TensorRef, ...]  # what was summed
    ranks: int


def lost_sums(tape: Tape) -> dict[tuple[int, int], Sum]:
    """Return (op that first reads it, storage) -> a sum that is not finite in the run."""
    if not tape.snapshots:
        return {}
    found: dict[tuple[int, int], Sum] = {}
    last: dict[int, OpCall | None] = {}
    for call in tape.ops:
        for ref in refs_in((call.args, call.kwargs)):
            key, writer = (call.index, ref.storage), last.get(ref.storage)
            if writer is None or key not in tape.snapshots:
                continue
            summed = tuple(r for r in refs_in(writer.args) if r.storage == ref.storage)
            if any(_is_lost(tape.snapshots[key], r) for r in summed):
                found[key] = Sum(summed, int(writer.kwargs.get("ranks", 1)))
        for number in call.mutates:
            last[number] = call if call.op.startswith(_SUMS) else None
    return found


def _is_lost(data: Tensor, ref: TensorRef) -> bool:
    if not is_float_ref(ref):
        return False
    values = torch.empty(0, dtype=torch_dtype(ref.dtype), device=data.device)
    return (
        nonfinite_code(values.set_(data.untyped_storage(), ref.offset, ref.shape, ref.stride)) > 0
    )


def as_if_alike(env: Environment, number: int, summed: Sum) -> bool:
    """Sum this rank's part as often as there are ranks; False where it is not at hand."""
    if not env.has(number):
        return False
    if summed.ranks > 1:
        for ref in summed.refs:
            env.own(ref).mul_(summed.ranks)
    return True
