"""A gradient is made inside backward without the loss scale that the main gradient carries.

What it checks:
    Constants created by ops of backward (ones, as a custom backward returns them for an auxiliary
    loss) that do not descend from the gradient of the scaled loss and are added to one that does,
    or reach a parameter on their own.

Why it matters:
    The main gradient is divided by the scale afterwards, and the injected one with it: it counts
    2^k too little, and the auxiliary loss, a load balance or a penalty, has no effect.

Example:
    @staticmethod
    def backward(ctx, grad):
        (aux,) = ctx.saved_tensors
        return grad, torch.ones_like(aux)        # not multiplied by the loss scale

Remedy:
    Multiply the injected gradient by the loss scale, or add the auxiliary loss to the loss before
    it is scaled.

References:
    https://github.com/NVIDIA-NeMo/Automodel/pull/1412
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import subject
from fp16doctor.diagnose.usage_words import (
    scale_evidence,
    scale_words,
    scaled,
    seen_in,
)
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.usage import UsageKind


@rule(code="FD409", name="unscaled-auxiliary-gradient", needs=("recording",))
def unscaled_auxiliary_gradient(seen: Observations) -> Iterator[Finding]:
    """Yield one finding per line that makes such a gradient."""
    for fact in seen.used(UsageKind.UNSCALED_INJECTION):
        if not scaled(fact):
            continue
        factor = scale_words(fact)
        yield Finding(
            code="FD409",
            name="unscaled-auxiliary-gradient",
            severity=Severity.ERROR,
            fault=Fault.MISUSE,
            what=(
                f"a gradient made in the backward of {subject(fact.site)} lacks the loss scale: "
                f"it counts {factor} times too little"
            ),
            cause=(
                f"`{fact.detail}` makes it inside backward; it does not descend from the scaled "
                "loss and is added to gradients that do, which are divided by the scale later. "
                f"{seen_in(fact)}"
            ),
            site=fact.site,
            evidence=scale_evidence(fact),
            reaches=("gradients",),
            advice=(
                "multiply the injected gradient by the loss scale (`scaler.get_scale()`), or add "
                "the auxiliary loss to the loss before it is scaled"
            ),
        )
