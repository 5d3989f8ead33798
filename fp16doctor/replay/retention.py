"""What a step multiplies the old value of a stored tensor by: 0.999 in 0.999 · old + 0.001 · new.

An average that has come near its target and stands still there misses little, a sum misses
everything: the factor tells them apart. Where the ops do not say, it is 1, as in a sum.

Must not know how much of an update is realised.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from fp16doctor.replay import op_traits
from fp16doctor.replay.dataflow import producers_of
from fp16doctor.replay.rebound import Path, way_back
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

_MOMENTUM = 6  # argument of the batch norms
_BETAS = {2: "beta1", 3: "beta2"}  # of the fused Adams: list of tensors -> factor


def retention(tape: Tape, path: Path) -> float:
    """Return the factor of the ops in a row."""
    return prod(_factor(tape.ops[index], ref.storage) for index, ref in path)


def in_place(tape: Tape, ref: TensorRef, writers: Sequence[int]) -> Path:
    """Return the ops that take a tensor's old value to its new one.

    Behind one that copies over it stands what was computed from the old value.
    """
    producers, path = producers_of(tape), []
    for index in writers:
        call = tape.ops[index]
        path.append((index, ref))
        source = call.args[1] if op_traits.base(call.op) == "copy_" else None
        if isinstance(source, TensorRef):
            writer = producers.last_writer(source.storage, index)
            path += (writer is not None and way_back(tape, producers, source, writer)) or ()
    return tuple(path)


def _factor(call: OpCall, number: int) -> float:
    name = op_traits.base(call.op).strip("_")
    name = name.removeprefix("foreach_")
    if "batch_norm" in name:
        return 1.0 - (_number(call.args[_MOMENTUM : _MOMENTUM + 1]) or 0.0)
    if name.startswith("fused_adam"):
        at = next((i for i, a in enumerate(call.args) if number in _storages(a)), -1)
        return float(call.kwargs.get(_BETAS.get(at, ""), 1.0))
    if name == "mul":
        return _within(_number(call.args))
    if name == "lerp":
        weight = _number((*call.args, *call.kwargs.values()))
        return _within(None if weight is None else 1.0 - weight) if _first(call, number) else 1.0
    return 1.0


def _first(call: OpCall, number: int) -> bool:
    return bool(call.args) and number in _storages(call.args[0])


def _storages(value: Any) -> set[int]:
    return {r.storage for r in refs_in(value)}


def _number(values: Sequence[Any]) -> float | None:
    return next((float(v) for v in values if type(v) in (float, int)), None)


def _within(factor: float | None) -> float:
    return factor if factor is not None and 0.0 < factor < 1.0 else 1.0
