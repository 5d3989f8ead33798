"""An optimizer steps twice on the same gradients.

What it checks:
    `optimizer.step()` or `scaler.step(optimizer)` called a second time with no backward and no
    write to the gradients in between.

Why it matters:
    The update is applied twice. After `scaler.step` the direct call also goes through in the
    steps that the scaler skips, and writes inf and NaN into the weights.

Example:
    scaler.step(optimizer)
    optimizer.step()            # a second time
    scaler.update()

Remedy:
    Remove one of the two; with a GradScaler, keep `scaler.step(optimizer)`.

References:
    PyTorch documentation, torch.amp.GradScaler.step
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.usage_words import line_of, seen_in
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.usage import UsageKind

_BY_SCALER = "scaler.step"


@rule(code="FD404", name="stepped-twice", needs=("recording",), explains=("FD11", "FD10"))
def stepped_twice(seen: Observations) -> Iterator[Finding]:
    """Yield one finding per line that steps once more."""
    for fact in seen.used(UsageKind.STEPPED_TWICE):
        mixed = fact.detail == _BY_SCALER
        name = fact.optimizer or "the optimizer"
        yield Finding(
            code="FD404",
            name="stepped-twice",
            # Without a scaler it is no matter of precision, and may be meant.
            severity=Severity.ERROR if mixed else Severity.NOTE,
            fault=Fault.MISUSE,
            what=f"{name} steps a second time on the same gradients",
            cause=(
                f"`{fact.detail}` had applied these gradients already, and no backward came "
                f"between. {seen_in(fact)}"
            ),
            site=fact.site,
            reaches=("parameters",),
            advice=f"remove the second step{line_of(fact.site)}" if mixed else "",
        )
