"""An optimizer steps on gradients that still carry the loss scale.

What it checks:
    Backward ran on `scaler.scale(loss)`, and `optimizer.step()` was called without
    `scaler.unscale_` or `scaler.step`, and nothing else divided the gradients. A loss multiplied
    by a power of two by hand, and never divided, is a note: it may be a weight.

Why it matters:
    The gradients are 2^k too large. Under SGD the update is too, and the weights leave every
    format within a few steps. Optimizers that divide by their own running norm hide it, but
    clipping, eps and the check for inf and NaN do not work as meant.

Example:
    scaler.scale(loss).backward()
    optimizer.step()            # not scaler.step(optimizer)

Remedy:
    `scaler.step(optimizer)` and `scaler.update()` in place of `optimizer.step()`.

References:
    PyTorch documentation, torch.amp.GradScaler;
    https://github.com/nerfstudio-project/nerfacc/issues/307
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.usage_words import (
    line_of,
    scale_evidence,
    scale_free,
    scale_words,
    scaled,
    seen_in,
)
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.usage import CLIPPED, UsageFact, UsageKind

_LEAST_BY_HAND = 256.0  # smaller constants on a loss are weights more often than loss scales
# What weights that took updates 2^k too large lead to, in later steps and in this one's backward.
_CONSEQUENCES = ("FD10", "FD11", "FD20", "FD401")


@rule(
    code="FD403",
    name="never-unscaled",
    needs=("recording",),
    explains=_CONSEQUENCES,
)
def never_unscaled(seen: Observations) -> Iterator[Finding]:
    """Yield one finding per line that steps on scaled gradients."""
    for fact in seen.used(UsageKind.NEVER_UNSCALED):
        if scaled(fact) and not (fact.by_hand and _may_be_meant(fact)):
            yield _finding(fact)


def _may_be_meant(fact: UsageFact) -> bool:
    """A small constant is a weight of the loss, or undoes a mean over the batch."""
    return scale_free(fact.optimizer) or (fact.loss_scale or 0) < _LEAST_BY_HAND


def _finding(fact: UsageFact) -> Finding:
    factor = scale_words(fact)
    name = fact.optimizer or "the optimizer"
    return Finding(
        code="FD403",
        name="never-unscaled",
        severity=_severity(fact),
        fault=Fault.MISUSE,
        what=f"{name} steps on gradients that {_state(fact, factor)}",
        cause=f"{_cause(fact)} {seen_in(fact)}",
        site=fact.site,
        evidence=scale_evidence(fact),
        reaches=("parameters",),
        advice="" if fact.by_hand else _advice(fact),
    )


def _state(fact: UsageFact, factor: str) -> str:
    if fact.detail == CLIPPED:
        return f"were clipped while they are {factor} times too large"
    return f"are {factor} times too large"


def _severity(fact: UsageFact) -> Severity:
    if fact.by_hand:
        return Severity.NOTE
    return Severity.WARNING if scale_free(fact.optimizer) else Severity.ERROR


def _cause(fact: UsageFact) -> str:
    if fact.by_hand:
        return (
            "The loss was multiplied by this constant before backward, and nothing divided the "
            "gradients by it; unless it is a weight of the loss, it is missing."
        )
    cause = (
        "Backward ran on the loss that `scaler.scale` returned, and `optimizer.step()` was called "
        "directly, so that nothing divided the gradients by the scale or looked for inf and NaN."
    )
    if fact.detail == CLIPPED:
        cause += (
            " Clipping leaves its threshold of whatever is larger, so that the size of the "
            "update tells nothing of the gradient's."
        )
    if scale_free(fact.optimizer):
        return f"{cause} {fact.optimizer} divides by its running norm, which hides the factor."
    return cause


def _advice(fact: UsageFact) -> str:
    advice = (
        f"replace `optimizer.step()`{line_of(fact.site)} by `scaler.step(optimizer)`, which "
        "unscales the gradients, followed by `scaler.update()`"
    )
    if fact.detail == CLIPPED:
        advice += ", and call `scaler.unscale_(optimizer)` in front of the clipping"
    return advice
