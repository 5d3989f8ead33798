"""A loss is computed of gradients that carry the loss scale.

What it checks:
    Gradients of a number that `scaler.scale` returned, taken with `torch.autograd.grad`, that go
    into a loss without being divided by the scale: a gradient penalty.

Why it matters:
    The penalty is about gradients that are 2^k too large: `(norm - 1) ** 2` with a scale of 65536
    asks for a norm of 1.5e-5 instead of 1, and outweighs every other loss until then. Its own
    gradients overflow in fp16 soon.

Example:
    grad, = torch.autograd.grad(scaler.scale(out.sum()), x, create_graph=True)
    penalty = (grad.norm(2, dim=1) - 1).pow(2).mean()        # of the scaled gradient
    scaler.scale(loss + penalty).backward()

Remedy:
    `grad = grad / scaler.get_scale()` before the penalty, outside autocast.

References:
    PyTorch documentation, Automatic Mixed Precision examples, "Gradient penalty"
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
from fp16doctor.schema.usage import UsageKind


@rule(
    code="FD411",
    name="scaled-penalty",
    needs=("recording",),
    explains=("FD10", "FD11", "FD401"),
)
def scaled_penalty(seen: Observations) -> Iterator[Finding]:
    """Yield one finding per line that computes with such gradients."""
    for fact in seen.used(UsageKind.SCALED_PENALTY):
        if not scaled(fact):
            continue
        factor = scale_words(fact)
        yield Finding(
            code="FD411",
            name="scaled-penalty",
            severity=Severity.ERROR,
            fault=Fault.MISUSE,
            what=f"a loss is computed of gradients that are {factor} times too large",
            cause=(
                "The gradients are those of a number that `scaler.scale` returned, and nothing "
                f"divided them by the scale before they went into the loss. {seen_in(fact)}"
            ),
            site=fact.site,
            evidence=scale_evidence(fact),
            reaches=("loss", "gradients"),
            advice=(
                "divide the gradients that `torch.autograd.grad` returned by `scaler.get_scale()` "
                f"before the loss uses them{line_of(fact.site)}, or take them of a number that is "
                "not scaled"
            ),
        )
