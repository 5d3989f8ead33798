"""A step as it would run if its GradScaler were used otherwise, or not at all.

Each function returns an edited tape, or None where the tape does not show how.

Must not know which use is a fault or whether another one is better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from fp16doctor.replay.dataflow import producers_of, writes
from fp16doctor.replay.editing import made, rearranged
from fp16doctor.replay.op_traits import base, is_unscale
from fp16doctor.replay.scale_numbers import numbers_rescaled
from fp16doctor.replay.scales import loss_scale, scale_of, scale_storage, scaler_scale
from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.tape import Leaf, OpCall, Tape, TensorRef, refs_in

Edit = Callable[[Tape], Tape | None]

_FILLS = ("full", "scalar_tensor", "full_like")
_ONES = ("ones_like", "ones", "new_ones")


def with_scale(tape: Tape, scale: float) -> Tape | None:
    """Return the step with another value of the scaler's scale; None where no tensor holds it.

    Numbers that the script read off the scaler and divides gradients by change with it.
    """
    number = scale_storage(tape)
    if number is None:
        return None
    tape = numbers_rescaled(tape, scaler_scale(tape), scale)
    if number in tape.leaves:
        leaves = {**tape.leaves, number: _of_value(tape.leaves[number], scale)}
        return replace(tape, leaves=leaves)
    index = producers_of(tape).writers(number)[0]
    call = tape.ops[index]
    if base(call.op) not in _FILLS:
        return None
    args = tuple(scale if isinstance(a, (int, float)) else a for a in call.args)
    return rearranged(tape, _with(tape, index, replace(call, args=args)))


def without_scaler(tape: Tape) -> Tape | None:
    """Return the step with 1 for the scale: what multiplies and divides by it is idle."""
    return with_scale(tape, 1.0)


def unscaled_first(tape: Tape) -> Tape | None:
    """Return the step with the scaler's division right behind the last backward.

    None where there is none, or where what stands between was computed by Python from gradients:
    such numbers are on the tape as they were.
    """
    if not tape.backward_ends:
        return None
    end = tape.backward_ends[-1]
    behind = tape.ops[end:]
    divisions = [c for c in behind if is_unscale(c.op)]
    if not divisions:
        return None
    if _reads_back(tape, end, divisions[0].index):
        return None
    first = _needed(tape, divisions, end)
    rest = [c for c in behind if c.index not in first]
    return rearranged(tape, [*tape.ops[:end], *(c for c in behind if c.index in first), *rest])


def _reads_back(tape: Tape, first: int, last: int) -> bool:
    """Tell whether Python read a number that was computed from gradients."""
    known = set(tape.gradients)
    for call in tape.ops[first:last]:
        if known.isdisjoint(r.storage for r in refs_in((call.args, call.kwargs))):
            continue
        if base(call.op) == "_local_scalar_dense":
            return True
        known |= writes(call)
    return False


def unscaled_by_step(tape: Tape) -> Tape | None:
    """Return the step with its gradients divided by the scale behind the last backward.

    None where Python computed with the gradients: such numbers are on the tape as they were.
    """
    gradients = _fresh_gradients(tape)
    if not gradients or scale_of(tape) == 1:
        return None
    if _reads_back(tape, tape.backward_ends[-1], tape.optimizer_at or len(tape.ops)):
        return None
    end, site = tape.backward_ends[-1], tape.ops[-1].site
    divide = made(
        "aten._foreach_mul_.Scalar",
        (gradients, 1 / scale_of(tape)),
        tuple(r.storage for r in gradients),
        replace(site, phase=Phase.OPTIMIZER),
    )
    return rearranged(tape, [*tape.ops[:end], divide, *tape.ops[end:]])


def unscaled_once(tape: Tape) -> Tape | None:
    """Return the step with the scaler's last division of each gradient only."""
    last = {g.storage: c.index for c in tape.ops if is_unscale(c.op) for g in c.args[0]}
    idle = {
        c.index
        for c in tape.ops
        if is_unscale(c.op) and all(last[g.storage] != c.index for g in c.args[0])
    }
    return _left_out(tape, idle)


def divided_once(tape: Tape, site: OpSite) -> Tape | None:
    """Return the step without the second division: the scaler's first, else what ``site`` does."""
    edited = unscaled_once(tape)
    if edited is not None:
        return edited
    gradients = set(tape.gradients)
    here = (c for c in tape.ops if c.op == site.op and c.site.source == site.source)
    return _left_out(tape, {c.index for c in here if not gradients.isdisjoint(writes(c))})


def _left_out(tape: Tape, indices: set[int]) -> Tape | None:
    if not indices:
        return None
    return rearranged(tape, [c for c in tape.ops if c.index not in indices])


def injection_scaled(tape: Tape, site: OpSite) -> Tape | None:
    """Return the step with ones that backward makes at ``site`` multiplied by the scale."""
    scale, calls = scale_of(tape), list(tape.ops)
    seeds = {mark.index for mark in tape.losses}
    for place, call in enumerate(calls):
        if call.index not in seeds and _is_injection(call, site):
            calls[place] = _filled(call, scale)
    edited = any(a is not b for a, b in zip(calls, tape.ops, strict=True))
    return rearranged(tape, calls) if edited and scale != 1 else None


def skipped_until_finite(tape: Tape) -> Tape | None:
    """Return the step itself: a scaler skips it until the scale is one at which it is finite."""
    return tape


def losses_scaled(tape: Tape) -> Tape | None:
    """Return the step with the backward of every loss that carries no scale begun with the scale.

    That gives the gradients of the product, whatever number the loss itself shows.
    """
    scale, calls = scaler_scale(tape), list(tape.ops)
    plain = [m.index for m in tape.losses if loss_scale(tape, m).factor == 1]
    seeds = [i for i in plain if i < len(calls) and base(calls[i].op) == "ones_like"]
    for index in seeds:
        calls[index] = _filled(calls[index], scale)
    return rearranged(tape, calls) if seeds and scale != 1 else None


def penalty_unscaled(tape: Tape) -> Tape | None:
    """Return the step with gradients of unscaled numbers in front of the last product's scale.

    That is what a division of these gradients by the scale gives.
    """
    number = scale_storage(tape)
    products = [
        c.index
        for c in tape.ops
        if base(c.op) == "mul" and any(r.storage == number for r in refs_in(c.args)[1:])
    ]
    forward = [i for i in products if tape.ops[i].site.phase is not Phase.BACKWARD]
    wrong = {i for i in products if forward and i < forward[-1]}
    calls = [replace(c, args=(c.args[0], 1.0)) if c.index in wrong else c for c in tape.ops]
    return rearranged(tape, calls) if wrong else None


def _is_injection(call: OpCall, site: OpSite) -> bool:
    same = call.op == site.op and call.site.module_path == site.module_path
    here = call.site.phase is Phase.BACKWARD and call.site.source == site.source
    return same and here and base(call.op) in _ONES


def _filled(call: OpCall, value: float) -> OpCall:
    """Return the same constant with another value."""
    if base(call.op) == "ones_like":
        return replace(call, op="aten.full_like.default", args=(call.args[0], value))
    if base(call.op) == "new_ones":
        return replace(call, op="aten.new_full.default", args=(*call.args, value))
    return replace(call, op="aten.full.default", args=(*call.args, value))


def _needed(tape: Tape, calls: list[OpCall], end: int) -> set[int]:
    """Return ``calls`` and the ops behind ``end`` that what they read, gradients apart, needs."""
    producers, gradients = producers_of(tape), set(tape.gradients)
    found = {c.index for c in calls}
    queue = list(calls)
    while queue:
        call = queue.pop()
        for number in {r.storage for r in refs_in((call.args, call.kwargs))} - gradients:
            for index in producers.writers(number):
                if end <= index < call.index and index not in found:
                    found.add(index)
                    queue.append(tape.ops[index])
    return found


def _fresh_gradients(tape: Tape) -> tuple[TensorRef, ...]:
    """Return the gradients that the last backward wrote."""
    if not tape.backward_ends:
        return ()
    end = tape.backward_ends[-1]
    begin = tape.losses[-1].index if tape.losses else 0
    producers, found = producers_of(tape), []
    for number in tape.gradients:
        ref, last = producers.widest_view(number), producers.last_writer(number, end)
        if ref is not None and last is not None and last >= begin:
            found.append(ref)
    return tuple(found)


def _with(tape: Tape, index: int, call: OpCall) -> list[OpCall]:
    return [call if c.index == index else c for c in tape.ops]


def _of_value(leaf: Leaf, value: float) -> Leaf:
    data = leaf.data.clone()
    data.view(torch.float32).fill_(value)
    return replace(leaf, data=data)


def takes_a_step(tape: Tape) -> bool:
    """Tell whether an optimizer moved a parameter: a scaler skips it where gradients overflow."""
    parameters = {n for n, leaf in tape.leaves.items() if leaf.is_parameter}
    end = tape.backward_ends[-1] if tape.backward_ends else len(tape.ops)
    return any(not parameters.isdisjoint(writes(c)) for c in tape.ops[end:])
