"""Finds optimizers that step twice on the same gradients.

Must not know what comes of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.record.usage.calls import Attempt
from fp16doctor.record.usage.step_view import Seen, StepView
from fp16doctor.schema.location import Phase
from fp16doctor.schema.usage import UsageKind


def stepped_twice(view: StepView) -> Iterator[Seen]:
    """Yield each second step of an optimizer whose gradients are the first step's."""
    last: dict[int, Attempt] = {}
    for attempt in view.calls.attempts:
        before = last.get(attempt.optimizer)
        last[attempt.optimizer] = attempt
        if before is None or not attempt.gradients or attempt.closure or before.closure:
            continue
        if attempt.gradients == before.gradients and _untouched(view, before, attempt):
            yield Seen(
                UsageKind.STEPPED_TWICE,
                attempt.where,
                attempt.first,
                Phase.OPTIMIZER,
                facts={"optimizer": attempt.name, "detail": _call(before)},
            )


def _untouched(view: StepView, first: Attempt, second: Attempt) -> bool:
    """No backward ran and nothing was written to the gradients between the two."""
    if any(first.last < end <= second.first for end in view.marks.backward_ends):
        return False
    gradients = set(second.gradients)
    return all(gradients.isdisjoint(op.written) for op in view.ops[first.last : second.first])


def _call(attempt: Attempt) -> str:
    return "scaler.step" if attempt.by_scaler else "optimizer.step"
