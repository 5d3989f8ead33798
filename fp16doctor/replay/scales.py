"""The loss scale a recorded step was run with, read off its tape.

Must not know what a scale is good for.
"""

from __future__ import annotations

from math import log2

import torch

from fp16doctor.replay.dataflow import Producers
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in


def scale_of(tape: Tape) -> float:
    """Return the factor of the last product in front of backward: a scaler's scale or a constant.

    1 where there is none, or where it is no power of two.
    """
    if not tape.losses:
        return 1.0
    mark = tape.losses[-1]
    index = Producers(tape).last_writer(mark.ref.storage, mark.index)
    call = tape.ops[index] if index is not None else None
    if call is None or call.op.split(".")[1] not in ("mul", "mul_"):
        return 1.0
    factor = _constant(call) or _tensor_factor(tape, call)
    return factor if factor is not None and _is_power(factor) else 1.0


def _constant(call: OpCall) -> float | None:
    numbers = [a for a in call.args if isinstance(a, (int, float)) and not isinstance(a, bool)]
    return float(numbers[0]) if numbers else None


def _tensor_factor(tape: Tape, call: OpCall) -> float | None:
    """Return the value of a one-element fp32 leaf among the factors: GradScaler's scale."""
    for ref in refs_in(call.args):
        made = Producers(tape).last_writer(ref.storage, call.index)
        if made is not None and tape.ops[made].op.startswith("aten.full."):
            return _constant(tape.ops[made])
        leaf = tape.leaves.get(ref.storage)
        if leaf is not None and not leaf.is_parameter and ref.dtype == "float32":
            return float(_value(leaf.data, ref))
    return None


def _value(data: torch.Tensor, ref: TensorRef) -> torch.Tensor:
    flat = torch.empty(0, dtype=torch.float32, device=data.device)
    return flat.set_(data.untyped_storage(), ref.offset, (1,), (1,))


def _is_power(value: float) -> bool:
    return value >= 1 and log2(value) == int(log2(value))
