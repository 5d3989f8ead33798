"""A parameter or buffer is inf or NaN, and the step that made it so was not examined.

What it checks:
    Parameters and buffers that hold an inf or NaN when an examined step first reads them, where
    the step before ran unseen, or had non-finite values and was not replayed.

Why it matters:
    Everything behind it is NaN from then on, and nothing in the step that shows it is to blame.
    Whether an op of the step before overflowed or the script wrote the value is not known.

Example:
    with fp16doctor.profile(model, every=100):    # step 137 is not taped; step 138 starts with NaN

Remedy:
    Examine the step before: tape every step,
    ``with fp16doctor.profile(model, optimizer, every_step=True) as prof:``, or run the script
    under ``fp16doctor scan``, which records every step.

References:
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.poisoned import harmful, is_from_outside, leaves_something
from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import counted
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.trace import Poison, ReplayTrace


@rule(code="FD115", name="nonfinite-state", needs=("recording", "traces"))
def nonfinite_state(seen: Observations) -> Iterator[Finding]:
    """Yield one finding: the first step that took harm, where no examined step explains it."""
    for trace in sorted(seen.traces, key=lambda t: t.step):
        found = harmful(seen, trace)
        if found is not None:
            if not is_from_outside(seen, trace, found):
                yield _finding(seen, trace, found)
            return
        if leaves_something(trace):
            return


def _finding(seen: Observations, trace: ReplayTrace, poison: Poison) -> Finding:
    held = "NaN" if poison.nan else "inf"
    return Finding(
        code="FD115",
        name="nonfinite-state",
        severity=Severity.ERROR,
        fault=Fault.NAN_BIRTH,
        what=f"{_name(poison)} holds {held} when step {trace.step} first reads it",
        cause=(
            f"{_before(seen, trace.step - 1)} What made it is not known. "
            f"{counted(poison.later_nonfinite, 'op')} of step {trace.step} "
            f"{'inherits' if poison.later_nonfinite == 1 else 'inherit'} it."
        ),
        site=poison.site,
        consequences=poison.later_nonfinite,
        chain=(poison.site,),
        reaches=poison.reaches,
        advice=(
            f"have step {trace.step - 1} examined: tape every step, "
            "`with fp16doctor.profile(model, optimizer, every_step=True) as prof:`, or run the "
            "script under `fp16doctor scan`"
        ),
    )


def _name(poison: Poison) -> str:
    kind = "parameter" if poison.is_parameter else "buffer"
    return f"{kind} `{poison.name}`" if poison.name else f"a {kind}"


def _before(seen: Observations, number: int) -> str:
    step = seen.step(number)
    if step is None or not step.n_ops:
        return f"The ops of step {number} were not recorded."
    ops = counted(step.n_nonfinite_ops, "op")
    return f"{ops} of step {number} gave inf or NaN, and that step was not examined."
