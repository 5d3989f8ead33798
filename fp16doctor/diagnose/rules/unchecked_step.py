"""An optimizer steps on gradients in which the scaler found inf or NaN.

What it checks:
    `optimizer.step()` called directly behind `scaler.unscale_(optimizer)`, in a run in which inf or
    NaN reached the parameters.

Why it matters:
    `scaler.unscale_` looks for inf and NaN, and only `scaler.step` skips the update where it found
    them. A GradScaler begins with a scale that overflows and lowers it: its first steps are meant
    to be skipped. Stepped directly, the first of them makes the weights NaN.

Example:
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()            # not scaler.step(optimizer)
    scaler.update()

Remedy:
    `scaler.step(optimizer)`: it does not divide again.

References:
    PyTorch documentation, Automatic Mixed Precision examples, "Gradient clipping"
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.usage_words import line_of, scale_evidence, seen_in
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.usage import UsageFact, UsageKind


@rule(
    code="FD412",
    name="unchecked-step",
    needs=("recording", "traces"),
    explains=("FD104", "FD10", "FD11"),
)
def unchecked_step(seen: Observations) -> Iterator[Finding]:
    """Yield one finding per line that steps directly, where that reached the parameters."""
    for fact in seen.used(UsageKind.UNCHECKED_STEP):
        if _reached_parameters(seen):
            yield _finding(fact)


def _reached_parameters(seen: Observations) -> bool:
    """Whether an overflow of scaled gradients did: a skipped step would have left them out."""
    events = (e for t in seen.traces for e in t.events if not e.harmless)
    first = next((e for e in events if "parameters" in e.reaches), None)
    return first is not None and first.site.phase is Phase.BACKWARD


def _finding(fact: UsageFact) -> Finding:
    return Finding(
        code="FD412",
        name="unchecked-step",
        severity=Severity.ERROR,
        fault=Fault.MISUSE,
        what=f"{fact.optimizer or 'the optimizer'} steps whether the scaler found inf or not",
        cause=(
            "`scaler.unscale_` looked for inf and NaN, and `optimizer.step()` was called directly: "
            f"only `scaler.step` skips the update where there are any. {seen_in(fact)}"
        ),
        site=fact.site,
        evidence=scale_evidence(fact),
        reaches=("parameters",),
        advice=(
            f"replace `optimizer.step()`{line_of(fact.site)} by `scaler.step(optimizer)`, which "
            "skips the update where gradients are not finite, followed by `scaler.update()`"
        ),
    )
