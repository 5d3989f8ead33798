"""One recorded step as the kinds of usage look at it: ops, backwards, calls, gradients.

Must not know any single kind of usage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from fp16doctor.record.roll import RawOp, Roll
from fp16doctor.record.split import reads_of, writes_of
from fp16doctor.record.step_book import StepMarks
from fp16doctor.record.usage.calls import Calls, Scaled
from fp16doctor.record.whereabouts import Where
from fp16doctor.schema.location import Phase
from fp16doctor.schema.usage import UsageKind

UNSCALE = "aten._amp_foreach_non_finite_check_and_unscale_.default"
HAND_LEAST = 8.0  # smallest constant factor on a loss that may be a loss scale
_CHAIN = 6  # ops looked at upstream of a loss
_BEFORE_BACKWARD = (Phase.FORWARD, Phase.LOSS)


@dataclass(frozen=True, slots=True)
class Scaling:
    """What the loss of one backward was multiplied by."""

    kind: str  # "none", "scaler", "hand", "unknown"
    factor: float | None = None  # the constant, by hand


@dataclass(frozen=True, slots=True)
class Backward:
    """One run of the autograd engine."""

    seed: int | None  # op that made the gradient of the loss; None where the script gave it
    first: int
    last: int  # one behind its last op
    scaling: Scaling


@dataclass(frozen=True, slots=True)
class Seen:
    """A usage met in this step, before it has a site."""

    kind: UsageKind
    where: Where
    index: int
    phase: Phase
    op: str = ""
    facts: dict[str, Any] = field(default_factory=dict)  # further fields of the UsageFact
    step: int | None = None  # where it may be told in a later step than its own


@dataclass
class StepView:
    """A closed step; everything is worked out once, when it is asked for."""

    roll: Roll
    marks: StepMarks
    calls: Calls
    scale: Callable[[], float | None]  # GradScaler's scale in this step; may read the device

    @property
    def ops(self) -> list[RawOp]:
        """The records of the step."""
        return self.roll.ops

    @cached_property
    def backwards(self) -> tuple[Backward, ...]:
        """Runs of autograd in order."""
        return tuple(self._backwards())

    def _backwards(self) -> Iterator[Backward]:
        losses, start = dict(self.marks.losses), 0
        for end in self.marks.backward_ends:
            reads = [i for i in losses if start <= i < end]
            if reads:
                seed = reads[-1]
                yield Backward(seed, seed + 1, end, self._scaling(losses[seed][0], seed))
            else:
                yield Backward(None, start, end, Scaling("unknown"))
            start = end

    def _scaling(self, loss: int, seed: int) -> Scaling:
        calls = [c for c in self.calls.scaled if c.index <= seed]
        if calls and loss in self._descendants(calls, seed):
            return Scaling("scaler")
        return self._scaled_by_hand(loss, seed)

    def _descendants(self, calls: list[Scaled], end: int) -> set[int]:
        known = {n for c in calls for n in c.outputs}
        for op in self.ops[calls[0].index : end]:
            if not known.isdisjoint(reads_of(op)):
                known |= writes_of(op)
        return known

    def _scaled_by_hand(self, loss: int, seed: int) -> Scaling:
        """The constant factors in the chain of products that ends in the loss."""
        factor, constant = 1.0, 1.0
        for op in self._chain(loss, seed):
            value = number_factor(op)
            if value is None:
                if self._tensor_factor(op):
                    return Scaling("unknown")
                break
            factor *= value
            if value >= HAND_LEAST and _is_power_of_two(value):
                constant = value
        if factor >= HAND_LEAST and constant > 1:
            return Scaling("hand", constant)
        return Scaling("none" if factor < HAND_LEAST else "unknown")

    def _chain(self, number: int, end: int) -> Iterator[RawOp]:
        found = 0
        for index in range(end - 1, -1, -1):
            op = self.ops[index]
            if number not in writes_of(op):
                continue
            yield op
            found += 1
            sources = sorted(reads_of(op))
            if found == _CHAIN or not sources or type(op.args[0]) is not tuple:
                return
            number = op.args[0][0]

    def _tensor_factor(self, op: RawOp) -> bool:
        """Whether it multiplies by a 0-d tensor that does not train: a scaler of its own."""
        if base_of(op) not in ("mul", "div"):
            return False
        leaves = self.roll.leaves.keys() - self.roll.params.keys()
        refs = [a for a in op.args if type(a) is tuple]
        return any(r[0] in leaves and not len(r[2]) for r in refs)

    @cached_property
    def formats(self) -> dict[torch.dtype, int]:
        """Ops of forward, loss and backward by the dtype of their first output."""
        counts: dict[torch.dtype, int] = {}
        for op in self.ops:
            if op.where[3] not in (*_BEFORE_BACKWARD, Phase.BACKWARD):
                continue
            ref = first_ref(op.outputs)
            if ref is not None:
                counts[ref[1]] = counts.get(ref[1], 0) + 1
        return counts

    def unscales(self) -> bool:
        """Whether a GradScaler divided gradients in this step."""
        return any(op.info.name == UNSCALE for op in self.ops)


PRODUCTS = frozenset({"mul", "div"})  # as ``base_of`` names them


def base_of(op: RawOp) -> str:
    """Name of an op without namespace, overload, ``_foreach`` and in-place mark."""
    return op.info.name.split(".")[1].strip("_").removeprefix("foreach_")


def number_factor(op: RawOp) -> float | None:
    """The Python number by which an op multiplies its first operand; None for any other op."""
    base, args = base_of(op), op.args
    if base not in ("mul", "div") or len(args) < 2 or isinstance(args[1], bool):
        return None
    value = args[1]
    if not isinstance(value, (int, float)) or (base == "div" and (not value or op.kwargs)):
        return None
    return float(value) if base == "mul" else 1 / float(value)


def first_ref(value: Any) -> Any:
    """The first reference in a nest of lists."""
    if type(value) is tuple:
        return value
    if type(value) is list:
        return next((r for v in value if (r := first_ref(v)) is not None), None)
    return None


def _is_power_of_two(value: float) -> bool:
    return value == int(value) and int(value) & (int(value) - 1) == 0
