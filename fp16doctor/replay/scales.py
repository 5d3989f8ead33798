"""The loss scale a recorded step was run with, read off its tape, and the loss under another one.

Must not know what a scale is good for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite, log2

import torch

from fp16doctor.replay.dataflow import producers_of
from fp16doctor.replay.op_traits import base, is_unscale
from fp16doctor.replay.player import Player
from fp16doctor.schema.policy import PrecisionPolicy
from fp16doctor.schema.tape import Mark, OpCall, Tape, TensorRef, refs_in

LONGEST_WAY = 4  # products and quotients behind the scaler's: `scaler.scale(loss) / 4`

WAY_OF_INVERSE = 8  # casts, the reciprocal and copies to a device between the scale and its inverse


@dataclass(frozen=True, slots=True)
class LossScale:
    """A power of two, or a GradScaler's own scale, that a loss is multiplied by before backward."""

    factor: float
    operand: TensorRef | None  # the loss in front of it; None where it is not scaled


def scale_of(tape: Tape) -> float:
    """Return the factor of the last product in front of backward: a scaler's scale or a constant.

    1 where there is none, or where it is a constant that is no power of two.
    """
    return loss_scale(tape, tape.losses[-1]).factor if tape.losses else 1.0


def scale_storage(tape: Tape) -> int | None:
    """Return the storage of the scale that a GradScaler multiplies a loss by, the last first.

    Where it multiplies none, of the scale that it divides gradients by.
    """
    for mark in reversed(tape.losses):
        found = _multiplied_by(tape, mark)
        if found is not None:
            return found
    return _divided_by(tape)


def scaler_scale(tape: Tape) -> float:
    """Return the value of a GradScaler's scale, 1 where there is none."""
    number = scale_storage(tape)
    if number is None:
        return 1.0
    leaf = tape.leaves.get(number)
    if leaf is not None:
        return float(leaf.data[:4].view(torch.float32))
    return _constant_result(tape.ops[producers_of(tape).writers(number)[0]]) or 1.0


def _divided_by(tape: Tape) -> int | None:
    """Follow the factor of GradScaler's division, 1 / scale, up to the scale."""
    producers = producers_of(tape)
    call = next((c for c in tape.ops if is_unscale(c.op)), None)
    for _ in range(WAY_OF_INVERSE):
        refs = refs_in(call.args)[-1:] if call is not None else []
        if call is None or not refs:
            return None
        number = refs[0].storage
        index = producers.last_writer(number, call.index)
        if index is None:
            return number if number in tape.leaves else None
        call = tape.ops[index]
        if _constant_result(call) is not None:
            return number
    return None


def _multiplied_by(tape: Tape, mark: Mark) -> int | None:
    producers = producers_of(tape)
    number, before = mark.ref.storage, mark.index
    for _ in range(LONGEST_WAY):
        index = producers.last_writer(number, before)
        call = tape.ops[index] if index is not None else None
        operand = None if call is None else _operand(call)
        if call is None or operand is None or base(call.op) not in ("mul", "mul_", "div", "div_"):
            return None
        found = _tensor_factor(tape, call)
        if found is not None and _is_scale(tape, found):
            return found[0].storage
        number, before = operand.storage, call.index
    return None


def loss_scale(tape: Tape, mark: Mark) -> LossScale:
    """Return how the loss that backward was called on is scaled."""
    producers, number, before = producers_of(tape), mark.ref.storage, mark.index
    for _ in range(LONGEST_WAY):
        index = producers.last_writer(number, before)
        call = tape.ops[index] if index is not None else None
        if call is None or base(call.op) not in ("mul", "mul_", "div", "div_"):
            break
        factor = _factor(tape, call, direct=before == mark.index)
        found = None if _constant(call) is not None else _tensor_factor(tape, call)
        known = _is_power(factor or 0.0) if found is None else _is_scale(tape, found)
        if factor is not None and known:
            return LossScale(factor, _operand(call) if before == mark.index else None)
        operand = _operand(call)
        if operand is None:
            break
        number, before = operand.storage, call.index
    return LossScale(1.0, None)


def at_scale(policy: PrecisionPolicy, tape: Tape, scale: float) -> PrecisionPolicy:
    """Return the policy with ``scale`` for the loss scale of a step, whatever that was."""
    return replace(policy, scale_factor=scale / scale_of(tape))


def scaled_at_most(policy: PrecisionPolicy, tape: Tape, ceiling: float | None) -> PrecisionPolicy:
    """Return the policy with the loss scale of a step lowered to ``ceiling`` where it is above."""
    if ceiling is None or scale_of(tape) <= ceiling:
        return policy
    return at_scale(policy, tape, ceiling)


def read_loss(player: Player, mark: Mark) -> float:
    """Return the loss at a mark, with the run's loss scale; inf where a format cannot hold it.

    Under another scale the product is formed anew, and the change of scale divided out again.
    """
    change = player.policy.scale_factor
    value = float(player.env.tensor(mark.ref).detach().double().sum())
    if change == 1.0:
        return value
    scale = loss_scale(player.tape, mark)
    if scale.operand is None or not player.env.has(scale.operand.storage):
        return value
    unscaled = float(player.env.tensor(scale.operand))
    dtype = player.env.tensor(mark.ref).dtype
    product = float(torch.tensor(unscaled * scale.factor * change, dtype=torch.float64).to(dtype))
    return unscaled * scale.factor if isfinite(product) else product


def _factor(tape: Tape, call: OpCall, *, direct: bool) -> float | None:
    """Return the number that an op multiplies by; of constants only the last product's counts."""
    if base(call.op).startswith("div"):
        return None
    constant = _constant(call)
    if constant is not None:
        return constant if direct else None
    found = _tensor_factor(tape, call)
    return None if found is None else found[1]


def _operand(call: OpCall) -> TensorRef | None:
    """Return the tensor that is scaled: the first one; of `scale * loss` torch makes the same."""
    refs = refs_in(call.args)
    return None if not refs or refs[0].storage in call.mutates else refs[0]


def _constant(call: OpCall) -> float | None:
    numbers = [a for a in call.args if isinstance(a, (int, float)) and not isinstance(a, bool)]
    return float(numbers[0]) if numbers else None


def _tensor_factor(tape: Tape, call: OpCall) -> tuple[TensorRef, float] | None:
    """Return the one-element fp32 factor that no op computes, GradScaler's scale, and its value."""
    for ref in refs_in(call.args)[1:]:
        made = producers_of(tape).last_writer(ref.storage, call.index)
        if made is not None:
            value = _constant_result(tape.ops[made])
            return None if value is None else (ref, value)
        leaf = tape.leaves.get(ref.storage)
        if leaf is not None and not leaf.is_parameter and ref.dtype == "float32" and not ref.shape:
            return ref, float(_value(leaf.data, ref))
    return None


def _constant_result(call: OpCall) -> float | None:
    """Return what `torch.full((), value)` holds."""
    made = base(call.op) in ("full", "scalar_tensor", "fill_", "full_like")
    return _constant(call) if made else None


def _value(data: torch.Tensor, ref: TensorRef) -> torch.Tensor:
    flat = torch.empty(0, dtype=torch.float32, device=data.device)
    return flat.set_(data.untyped_storage(), ref.offset, (1,), (1,))


def _is_scale(tape: Tape, found: tuple[TensorRef, float]) -> bool:
    """Tell a scaler's scale: a power of two, or what the gradients are divided by afterwards.

    One that starts at 1000, or backs off by 0.9, is no power of two.
    """
    ref, value = found
    usual = _is_power(value, least=0.0)
    return usual or (isfinite(value) and value > 0 and ref.storage == _divided_by(tape))


def _is_power(value: float, least: float = 1.0) -> bool:
    """A scaler's own scale falls below 1; a constant below 1 is a weight of the loss."""
    return isfinite(value) and value > 0 and value >= least and log2(value) == int(log2(value))
