"""Finds losses that are computed of gradients which carry GradScaler's scale.

A penalty takes gradients of a scaled number with ``torch.autograd.grad`` and goes on with them.
What descends from the product with the scale inside backward is followed into the loss, unless it
is divided by the scale, or by something that carries it too.

Must not know whether it matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fp16doctor.record.roll import RawOp
from fp16doctor.record.split import reads_of, writes_of
from fp16doctor.record.usage.factors import LEAST_TWICE, is_inverse
from fp16doctor.record.usage.step_view import (
    PRODUCTS,
    Seen,
    StepView,
    base_of,
    first_ref,
    number_factor,
)
from fp16doctor.schema.location import Phase
from fp16doctor.schema.usage import UsageKind

_BEFORE_BACKWARD = (Phase.FORWARD, Phase.LOSS)


def scaled_penalties(view: StepView) -> Iterator[Seen]:
    """Yield the first op that computes with such a gradient on its way to a loss."""
    if len(view.marks.backward_ends) < 2 or not view.calls.scaled:
        return
    scale = view.scale()
    if scale is None or scale < LEAST_TWICE:
        return
    flow = _Flow(view, scale)
    origin = flow.run()
    if origin is not None:
        op = view.ops[origin]
        facts = {"loss_scale": scale, "detail": base_of(op)}
        yield Seen(UsageKind.SCALED_PENALTY, op.where, origin, Phase.LOSS, op.info.name, facts)


class _Flow:
    def __init__(self, view: StepView, scale: float) -> None:
        self._view, self._scale = view, scale
        self._factors = _scale_storages(view)
        self._inside: set[int] = set()  # made in backward of what carries the scale
        self._outside: dict[int, int] = {}  # storage -> op that took it out of backward

    def run(self) -> int | None:
        """Return the op that took a scaled gradient to a loss, None where none did."""
        losses = {index: ref[0] for index, ref in self._view.marks.losses}
        for index, op in enumerate(self._view.ops):
            if index in losses and losses[index] in self._outside:
                return self._outside[losses[index]]
            if op.where[3] is Phase.BACKWARD:
                self._backward(op)
            elif op.where[3] in _BEFORE_BACKWARD:
                self._forward(index, op)
        return None

    def _backward(self, op: RawOp) -> None:
        reads, made = reads_of(op), writes_of(op)
        if self._factors & reads or self._inside & reads:
            self._inside |= made
        else:
            self._inside -= made

    def _forward(self, index: int, op: RawOp) -> None:
        reads, made = reads_of(op), writes_of(op)
        known = [self._outside[n] for n in reads if n in self._outside]
        carries = bool(known) or not self._inside.isdisjoint(reads)
        if carries and not self._frees(op):
            self._outside.update(dict.fromkeys(made, min(known, default=index)))
            return
        self._inside -= made
        for number in made:
            self._outside.pop(number, None)

    def _frees(self, op: RawOp) -> bool:
        """Tell whether what comes out does not carry the scale any more."""
        result = first_ref(op.outputs)
        if result is None or not result[1].is_floating_point or base_of(op) == "sign":
            return True
        factor = number_factor(op)
        if factor is not None:
            return is_inverse(factor, self._scale)
        other = op.args[1] if base_of(op) in PRODUCTS and len(op.args) > 1 else None
        if type(other) is not tuple or (base_of(op) == "mul" and other[0] in self._factors):
            return False
        return self._is_constant(other) or self._is_alike(op, other)

    def _is_constant(self, ref: Any) -> bool:
        """A number beside the graph: the scale, or its inverse, as a tensor."""
        roll = self._view.roll
        return not len(ref[2]) and ref[0] not in self._outside and ref[0] not in roll.params

    def _is_alike(self, op: RawOp, ref: Any) -> bool:
        """A quotient of two gradients carries no scale."""
        carries = ref[0] in self._outside or ref[0] in self._inside
        return base_of(op) == "div" and carries


def _scale_storages(view: StepView) -> set[int]:
    """Return the storages of the scale that losses were multiplied by."""
    products = {n for call in view.calls.scaled for n in call.outputs}
    found = set()
    for op in view.ops:
        if base_of(op) == "mul" and not products.isdisjoint(writes_of(op)) and len(op.args) > 1:
            other = op.args[1]
            if type(other) is tuple and not len(other[2]):
                found.add(other[0])
    return found
