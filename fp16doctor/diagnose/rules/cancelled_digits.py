"""A sum or difference in 16 bits keeps the rounding errors of its operands and little else.

What it checks:
    Sums and differences of forward and loss whose result is 16 times less exact than what goes
    into them, where the gradient is at least 20 % off its reference in the first examined step and
    in most others, and where at least half of its squared error is gone once that one result is
    exact. That is measured on the recorded step.

Why it matters:
    a − b of nearly equal numbers has the absolute error of a and b. bf16 has 8 bits: of two values
    near 1000 it knows the difference to 4. A sum that gathers term by term stops at 256 equal
    terms. A later loss of small residuals, at the end of a training that went well, is not told.

Example:
    ends = durations.cumsum(1)            # bf16
    gaps = ends[:, 1:] - ends[:, :-1]     # 1.2 comes out as 0, 4 or 8

Remedy:
    Compute both operands and the difference in fp32, or rewrite the formula so that it does not
    subtract: the durations themselves, log_softmax in place of the log of a softmax, expm1, log1p.

References:
    Higham, Accuracy and Stability of Numerical Algorithms, sections 1.7 and 4.2;
    Goldberg, What every computer scientist should know about floating-point arithmetic, 1991.
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import in_fp32, number, op_in, place
from fp16doctor.diagnose.shares import finite_traces, sink_error
from fp16doctor.schema.finding import Evidence, Fault, Finding, Severity
from fp16doctor.schema.precision import FAR_OFF, AmplifiedError
from fp16doctor.schema.trace import ReplayTrace

MOST_OF_IT = 0.5  # of the squared gradient error
FEWEST = 2  # steps


@rule(code="FD306", name="cancelled-digits", needs=("traces",))
def cancelled_digits(seen: Observations) -> Iterator[Finding]:
    """Yield one finding for the sum that makes most of the gradient's error."""
    steps = [t for t in finite_traces(seen) if sink_error(t, "loss") or _off(t)]
    wrong = [t for t in steps if _off(t) >= FAR_OFF]
    if len(wrong) < FEWEST or steps[0] not in wrong or 2 * len(wrong) < len(steps):
        return
    found = [(t, a) for t in wrong if not _collides(t) for a in _guilty(t)]
    if found:
        yield _finding(*max(found, key=lambda pair: pair[1].share or 0.0), len(wrong), len(steps))


def _off(trace: ReplayTrace) -> float:
    return sink_error(trace, "gradients")


def _guilty(trace: ReplayTrace) -> list[AmplifiedError]:
    amplified = trace.precision.amplified if trace.precision is not None else ()
    return [a for a in amplified if a.share is not None and a.share >= MOST_OF_IT]


def _collides(trace: ReplayTrace) -> bool:
    """Integers that fall together are a fault of their own (FD305)."""
    return trace.precision is not None and any(i.collisions for i in trace.precision.integers)


def _finding(trace: ReplayTrace, sum_: AmplifiedError, wrong: int, steps: int) -> Finding:
    cause = sum_.cause_site
    made_by = "" if cause is None else f" {place(cause)} makes the operand."
    return Finding(
        code="FD306",
        name="cancelled-digits",
        severity=Severity.ERROR,
        fault=Fault.PRECISION_LOSS,
        what=(
            f"{op_in(sum_.site)} is {number(100 * sum_.error)} % off: its operands, "
            f"{number(100 * sum_.error_in)} % off in {sum_.format}, cancel"
        ),
        cause=(
            f"{place(sum_.site)} keeps the rounding errors of what it adds up and loses the digits "
            f"they share.{made_by} The gradient of step {trace.step} is "
            f"{number(100 * sum_.whole)} % off the {trace.reference} replay, "
            f"{number(100 * sum_.left)} % with this one result exact; {wrong} of {steps} examined "
            "steps are as far off."
        ),
        site=sum_.site,
        cause_site=cause,
        evidence=(
            Evidence("share of the squared gradient error", sum_.share or 0.0,
                     f"replayed:{trace.reference}", limit=MOST_OF_IT, limit_name="most of it",
                     format=sum_.format),
            Evidence("relative error of the result", sum_.error, f"replayed:{trace.reference}",
                     limit=sum_.error_in, limit_name="of its operands", format=sum_.format),
        ),
        reaches=("gradients",),
        advice=f"{in_fp32(sum_.site)}, its operands too: a difference needs the digits that "
        f"{sum_.format} rounds away",
    )  # fmt: skip
