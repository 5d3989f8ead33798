"""Optimizer state stored in 16 bits becomes zero where it should not.

What it checks:
    16-bit tensors that the optimizer keeps from step to step: the share of elements that are zero
    as run and not when the same step is made in fp32.

Why it matters:
    Adam's second moment is (1 − β₂) g²: in fp16 it is zero for gradients up to 5.5e-3, eps of 1e-8
    is zero as well, and the step divides by zero.

Example:
    optimizer = torch.optim.Adam(model.half().parameters(), lr=1e-3)

Remedy:
    Keep parameters and state in fp32 (autocast instead of .half()), or use an optimizer with fp32
    state. A larger eps avoids the division by zero and changes the step.

References:
    https://github.com/google-deepmind/optax/issues/1754; torch/optim/adam.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from fp16doctor.diagnose.limits import limits
from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import counted, number, place
from fp16doctor.schema.finding import Evidence, Fault, Finding, Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.precision import STATE_LOST, UpdateLoss

_EXPLODED = 10.0  # times the first loss


@rule(code="FD203", name="optimizer-state-underflow", needs=("updates",))
def optimizer_state_underflow(seen: Observations) -> Iterator[Finding]:
    """Yield one finding for all state tensors that flush."""
    states = [u for u in seen.updates if u.role == "state" and u.site.phase is Phase.OPTIMIZER]
    flushed = [u for u in states if u.underflows > STATE_LOST * u.total]
    if flushed:
        yield _finding(seen, flushed, states)


def _finding(seen: Observations, flushed: list[UpdateLoss], states: list[UpdateLoss]) -> Finding:
    worst = max(flushed, key=lambda u: u.underflows / u.total)
    smallest = limits(worst.format).smallest_subnormal
    return Finding(
        code="FD203",
        name="optimizer-state-underflow",
        severity=Severity.ERROR if _explodes(seen, worst.site.step) else Severity.WARNING,
        fault=Fault.UNDERFLOW,
        what=(
            f"{len(flushed)} of {counted(len(states), f'{worst.format} state tensor')} underflow: "
            f"{worst.underflows} of {worst.total} elements of one are zero and should not be"
        ),
        cause=f"The smallest magnitude of {worst.format} is {number(smallest)}; the squares that "
        f"{place(worst.site)} stores are smaller.",
        site=worst.site,
        evidence=(
            Evidence("elements that became zero", float(worst.underflows), "replayed:fp32",
                     limit=smallest, limit_name="smallest_subnormal", format=worst.format,
                     count=worst.underflows, total=worst.total),
        ),
        consequences=len(flushed) - 1,
        advice=_advice(seen, worst),
    )  # fmt: skip


def _advice(seen: Observations, worst: UpdateLoss) -> str:
    """A state in 16 bits beside fp32 parameters was made so by the optimizer itself."""
    stored = {name for name, count in seen.recording.run.parameters_by_dtype if count}
    if stored == {"float32"}:
        return f"keep the optimizer's state in fp32 where {place(worst.site)} stores it"
    return "keep parameters and optimizer state in fp32: autocast instead of a 16-bit model"


def _explodes(seen: Observations, step: int) -> bool:
    """Whether the loss ends far above its first, as a division by a lost square makes it.

    ``step`` is the first whose state is compared: the step that made it may have done the harm.
    """
    known = [(s.step, abs(s.loss)) for s in seen.recording.steps if s.loss is not None]
    after = [loss for at, loss in known if at > step]
    return bool(after) and not statistics.median(after) <= _EXPLODED * known[0][1]
