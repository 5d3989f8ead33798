"""Gradients are divided by the loss scale twice.

What it checks:
    `scaler.unscale_` or `scaler.step` on gradients that the script divided by the scale itself,
    or that the scaler had divided before its last update, with no fresh gradients since; a
    division by the scale in the script on gradients that `scaler.unscale_` divided.

Why it matters:
    The gradients are too small by the loss scale: with 65536, an update that should be 1e-3 is
    1.5e-8 and is lost beside the weight.

Example:
    for p in model.parameters():
        p.grad /= scaler.get_scale()
    scaler.step(optimizer)        # divides once more

Remedy:
    `scaler.unscale_(optimizer)` in place of the division by hand: the scaler remembers it.

References:
    PyTorch documentation, torch.amp.GradScaler.unscale_
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.usage_words import (
    line_of,
    scale_evidence,
    scale_words,
    scaled,
    seen_in,
)
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.usage import UsageFact, UsageKind


@rule(code="FD406", name="unscaled-twice", needs=("recording",), explains=("FD20",))
def unscaled_twice(seen: Observations) -> Iterator[Finding]:
    """Yield one finding per line that divides again."""
    for fact in seen.used(UsageKind.UNSCALED_TWICE):
        if not scaled(fact):
            continue
        factor = scale_words(fact)
        yield Finding(
            code="FD406",
            name="unscaled-twice",
            severity=Severity.ERROR,
            fault=Fault.MISUSE,
            what=f"gradients are divided by the loss scale twice: {factor} times too small",
            cause=(
                f"They had been divided by the scale already, and {_again(fact)} divides them "
                f"again. {seen_in(fact)}"
            ),
            site=fact.site,
            evidence=scale_evidence(fact),
            reaches=("gradients",),
            advice=_advice(fact),
        )


def _advice(fact: UsageFact) -> str:
    if fact.detail:
        return (
            f"remove the division{line_of(fact.site)}: `scaler.unscale_` and `scaler.step` divide"
            " by the scale, once a step"
        )
    return (
        "call `scaler.unscale_(optimizer)` once a step in place of the other division, after the "
        "last backward"
    )


def _again(fact: UsageFact) -> str:
    return "the script" if fact.detail else "the scaler"
