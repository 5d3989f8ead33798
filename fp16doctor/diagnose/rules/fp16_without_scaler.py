"""fp16 gradients flow in backward, and the loss carries no scale.

What it checks:
    Backward ops with fp16 results in a step whose loss was multiplied neither by a GradScaler nor
    by a constant. By itself this is a note; where gradients are lost by it, it is their cause.

Why it matters:
    fp16 rounds magnitudes up to 2⁻²⁵ to zero. A mean over many elements or a small weight of the
    loss puts gradients there, and the layers behind them do not learn.

Example:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(x), y)
    loss.backward()

Remedy:
    torch.amp.GradScaler around backward and step, or bf16, which has the range of fp32.

References:
    Micikevicius et al., Mixed Precision Training, arXiv 1710.03740, 3.2;
    PyTorch documentation, Automatic Mixed Precision, "Gradient scaling"
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.usage_words import line_of, seen_in
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.usage import UsageKind

# Gradients lost to underflow, and those that lost bits.
_CONSEQUENCES = ("FD201", "FD202")


@rule(
    code="FD407",
    name="fp16-without-scaler",
    needs=("recording",),
    explains=_CONSEQUENCES,
)
def fp16_without_scaler(seen: Observations) -> Iterator[Finding]:
    """Yield one finding per line that runs backward on an unscaled loss."""
    for fact in seen.used(UsageKind.FP16_WITHOUT_SCALE):
        yield Finding(
            code="FD407",
            name="fp16-without-scaler",
            severity=Severity.NOTE,
            fault=Fault.MISUSE,
            what=f"backward computes fp16 gradients without a loss scale{line_of(fact.site)}",
            cause=(
                "Neither a GradScaler nor a constant factor moves the gradients into the range of "
                f"fp16. {seen_in(fact)}"
            ),
            site=fact.site,
            advice=(
                "scale the loss: `scaler.scale(loss).backward(); scaler.step(optimizer); "
                "scaler.update()` with `scaler = torch.amp.GradScaler(device)`, or train in bf16"
            ),
        )
