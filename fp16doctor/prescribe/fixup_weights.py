"""Fixup's plan for the forward pass of a taped step, and the step from its weights.

Must not know how the step is judged or the plan is worded.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fp16doctor.apply.fixup import drawn
from fp16doctor.apply.fixup_plan import FixupPlan, plan_of
from fp16doctor.apply.flow import Flow
from fp16doctor.apply.residuals import residuals
from fp16doctor.replay.dataflow import producers_of
from fp16doctor.replay.environment import torch_dtype
from fp16doctor.replay.parameters import parameter_numbers
from fp16doctor.schema.location import Phase
from fp16doctor.schema.tape import Leaf, Tape, TensorRef

SEED = 0  # of the weights that are tried, and of those that are pasted


def plan_on(tape: Tape) -> FixupPlan:
    """Return the plan for the pass in front of the step's first loss.

    Raises:
        FixupError: it has no residual branches, or none that Fixup is for.
    """
    return plan_of(_flow(tape))


def additions_of(tape: Tape) -> tuple[int, ...]:
    """Return the indices of the additions that close a branch which holds no other."""
    flow, found = _flow(tape), []
    for one in residuals(flow):
        call = flow.values[one.addition].call
        if call is not None and not one.holds:
            found.append(call.index)
    return tuple(found)


def with_fixup(tape: Tape, plan: FixupPlan) -> Tape:
    """Return the tape with the plan's initial weights in its parameters, drawn from ``SEED``."""
    numbers, leaves, producers = parameter_numbers(tape), dict(tape.leaves), producers_of(tape)
    generator = torch.Generator().manual_seed(SEED)
    for name in sorted(plan.stds):
        ref = producers.widest_view(numbers.get(name, -1))
        if ref is not None:
            value = drawn(plan, name, own_shape(ref), generator)
            leaves[numbers[name]] = with_values(leaves[numbers[name]], value, ref)
    return replace(tape, leaves=leaves)


def with_values(leaf: Leaf, value: Tensor, ref: TensorRef) -> Leaf:
    """Return a parameter's leaf with other values, in the parameter's own shape."""
    data: Tensor = leaf.data.clone()
    view = torch.empty(0, dtype=torch_dtype(ref.dtype), device=data.device)
    view.set_(data.untyped_storage(), ref.offset, ref.shape, ref.stride)
    (view.T if _is_transposed(ref) else view).copy_(value)
    return replace(leaf, data=data)


def own_shape(ref: TensorRef) -> tuple[int, ...]:
    """Return the parameter's own shape: a tape may know it by the view that a product takes."""
    return ref.shape[::-1] if _is_transposed(ref) else ref.shape


def _is_transposed(ref: TensorRef) -> bool:
    return len(ref.shape) == 2 and ref.stride[0] < ref.stride[1]


def _flow(tape: Tape) -> Flow:
    end = tape.losses[0].index if tape.losses else len(tape.ops)
    phases = (Phase.FORWARD, Phase.LOSS)
    names = {number: (name,) for name, number in parameter_numbers(tape).items()}
    buffers = [number for number, leaf in tape.leaves.items() if leaf.is_buffer]
    return Flow((c for c in tape.ops[:end] if c.site.phase in phases), names, buffers)
