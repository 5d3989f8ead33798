"""The parameters of a taped step: their storages and their values in front of it.

Must not know policies.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fp16doctor.replay.dataflow import producers_of
from fp16doctor.replay.environment import torch_dtype
from fp16doctor.schema.tape import Tape


def parameter_numbers(tape: Tape) -> dict[str, int]:
    """Return the storage of every parameter by the name that its gradient has on the tape."""
    return {
        leaf.name or f"parameter {number}": number
        for number, leaf in tape.leaves.items()
        if leaf.is_parameter
    }


def parameter_values(tape: Tape) -> dict[str, Tensor]:
    """Return the parameters in float32 by name, as they were in front of the step."""
    producers, found = producers_of(tape), {}
    for name, number in parameter_numbers(tape).items():
        ref, data = producers.widest_view(number), tape.leaves[number].data
        if ref is not None and torch_dtype(ref.dtype).is_floating_point:
            out = torch.empty(0, dtype=torch_dtype(ref.dtype), device=data.device)
            out = out.set_(data.untyped_storage(), ref.offset, ref.shape, ref.stride)
            found[name] = out.float()
    return found
