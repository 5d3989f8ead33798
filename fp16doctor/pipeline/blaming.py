"""Which step's error is shared out among its ops, and how long that may take.

Must not know how an error is measured (``replay.blame``).
"""

from __future__ import annotations

from collections.abc import Sequence

from fp16doctor.replay.blame import Budgeted, error_budget
from fp16doctor.schema.blame import ErrorBudget
from fp16doctor.schema.finding import Finding, Severity
from fp16doctor.schema.tape import Tape
from fp16doctor.schema.trace import ReplayTrace

MOST_S = 10.0  # seconds: the cures are worth more


def blamed(
    tapes: Sequence[Tape],
    traces: Sequence[ReplayTrace],
    findings: Sequence[Finding],
    left_s: float,
) -> Budgeted:
    """Share out the error of the leading finding's step, else of the one with the largest.

    Empty, with the reason, where no such step was kept or ``left_s`` seconds are none.
    """
    step = _step(tapes, traces, findings)
    tape = next((t for t in tapes if t.step == step), None)
    if tape is None:
        return (), ErrorBudget(-1, "gradient error", 0.0, 0, reason="no step was kept for it")
    return error_budget(tape, min(left_s, MOST_S))


def _step(
    tapes: Sequence[Tape], traces: Sequence[ReplayTrace], findings: Sequence[Finding]
) -> int | None:
    kept = {t.step for t in tapes}
    leading = next((f for f in findings if f.severity is not Severity.NOTE), None)
    if leading is not None and leading.site is not None and leading.site.step in kept:
        return leading.site.step
    errors = [(e, -t.step) for t in traces if t.step in kept and (e := _error(t)) is not None]
    return -max(errors)[1] if errors else min(kept, default=None)


def _error(trace: ReplayTrace) -> float | None:
    """Return the error of a step's gradients, else of its loss.

    A step that is not finite comes last: nothing that demands action was found in it.
    """
    for name in ("gradients", "loss"):
        state = next((s for s in trace.sinks if s.sink == name), None)
        if state is not None:
            return -1.0 if state.nonfinite else state.error
    return None
