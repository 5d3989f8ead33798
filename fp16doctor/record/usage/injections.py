"""Finds gradients that are made inside backward and do not descend from the scaled loss.

A custom backward may let an auxiliary loss ride along: it returns ones where the loss scale should
be. Such a gradient is followed to the sum with the main gradient, or to a parameter.

Must not know whether the missing scale matters.
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.record.roll import RawOp
from fp16doctor.record.split import reads_of, writes_of
from fp16doctor.record.usage.step_view import Seen, StepView, base_of, number_factor
from fp16doctor.schema.location import Phase
from fp16doctor.schema.usage import UsageKind

_ONES = frozenset({"ones_like", "ones", "new_ones"})
_FILLED = frozenset({"full", "full_like", "new_full"})
_SUMS = frozenset({"add"})
_MARGIN = 256  # a constant this near to the loss scale may be the scale times a weight


def injections(view: StepView) -> Iterator[Seen]:
    """Yield the first unscaled gradient of a step whose every loss carries a scale."""
    backwards = view.backwards
    if not backwards or any(b.scaling.kind not in ("scaler", "hand") for b in backwards):
        return
    flow = _Flow(view)
    for backward in backwards:
        if backward.seed is not None:
            flow.scaled |= writes_of(view.ops[backward.seed])
            yield from flow.run(backward.first, backward.last)


class _Flow:
    def __init__(self, view: StepView) -> None:
        self._view = view
        self.scaled: set[int] = set()  # descends from the gradient of the loss
        self._unscaled: dict[int, int] = {}  # storage -> op that made the constant it stems from
        self._told: set[int] = set()

    def run(self, first: int, last: int) -> Iterator[Seen]:
        for index in range(first, last):
            op = self._view.ops[index]
            if op.where[3] is not Phase.BACKWARD:
                continue
            yield from self._one(index, op)

    def _one(self, index: int, op: RawOp) -> Iterator[Seen]:
        reads, made = reads_of(op), writes_of(op)
        origins = [self._unscaled[n] for n in reads if n in self._unscaled]
        descends = not self.scaled.isdisjoint(reads)
        if descends:
            self.scaled |= made
            for number in made:
                self._unscaled.pop(number, None)
            if origins and base_of(op) in _SUMS:
                yield from self._tell(origins[0])
            return
        self.scaled -= made
        if origins and not self._multiplies(op):
            self._unscaled.update(dict.fromkeys(made, origins[0]))
        elif _is_one(op):
            self._unscaled.update(dict.fromkeys(made, index))
        reached = made & self._view.marks.gradients.keys() & self._unscaled.keys()
        if reached:
            yield from self._tell(self._unscaled[min(reached)])

    def _multiplies(self, op: RawOp) -> bool:
        """By a number that may be the scale: what comes out counts as scaled."""
        factor = number_factor(op)
        if factor is not None:
            return abs(factor) * _MARGIN > (self._factor() or 1.0)
        if base_of(op) not in ("mul", "div"):
            return False
        leaves = self._view.roll.leaves
        return any(type(a) is tuple and a[0] in leaves and not len(a[2]) for a in op.args)

    def _tell(self, origin: int) -> Iterator[Seen]:
        if origin in self._told:
            return
        self._told.add(origin)
        op = self._view.ops[origin]
        source, caller = self._view.calls.lines.get(origin, op.where[:2])
        where = (source, caller, *op.where[2:])
        facts = {"loss_scale": self._factor(), "detail": base_of(op)}
        yield Seen(UsageKind.UNSCALED_INJECTION, where, origin, Phase.BACKWARD, op.info.name, facts)

    def _factor(self) -> float | None:
        by_hand = [b.scaling.factor for b in self._view.backwards if b.scaling.factor]
        return by_hand[0] if by_hand else self._view.scale()


def _is_one(op: RawOp) -> bool:
    base = base_of(op)
    if base in _ONES:
        return True
    return base in _FILLED and any(a == 1 for a in op.args if type(a) in (int, float))
