"""A GradScaler is used although only bf16 runs in 16 bits.

What it checks:
    Steps in which `scaler.scale` was called and every 16-bit op was bf16.

Why it matters:
    bf16 has the exponents of fp32, so no gradient needs a scale. The scaler costs a pass over the
    gradients and a synchronisation in every step, and skips steps whose gradients overflow by
    the scale itself.

Example:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()

Remedy:
    Leave the scaler away, or construct it with `enabled=False`.

References:
    PyTorch documentation, torch.amp.GradScaler;
    https://github.com/pytorch/pytorch/issues/127176
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import counted
from fp16doctor.diagnose.usage_words import ran, scale_evidence, seen_in
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.usage import UsageKind


@rule(code="FD408", name="scaler-with-bf16", needs=("recording",))
def scaler_with_bf16(seen: Observations) -> Iterator[Finding]:
    """Yield one finding per line that scales the loss of a bf16 step."""
    if ran(seen, "float16"):
        return
    skipped = sum(s.skipped for s in seen.recording.steps)
    for fact in seen.used(UsageKind.BF16_WITH_SCALER):
        lost = f" {counted(skipped, 'step')} of the run were skipped by it." if skipped else ""
        yield Finding(
            code="FD408",
            name="scaler-with-bf16",
            severity=Severity.WARNING if skipped else Severity.NOTE,
            fault=Fault.MISUSE,
            what="a GradScaler scales the loss although only bf16 runs in 16 bits",
            cause=(
                "bf16 has the range of fp32 and needs no loss scale; the scaler costs a pass over "
                f"the gradients in every step.{lost} {seen_in(fact)}"
            ),
            site=fact.site,
            evidence=scale_evidence(fact),
            advice="construct the scaler with `enabled=False`, or remove it",
        )
