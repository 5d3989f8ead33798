"""A logarithm is taken of a softmax that was rounded to 16 bits.

What it checks:
    log of the output of softmax, whole or gathered, where the softmax has a 16-bit result. A note
    by itself: where a probability became zero, the infinity has a finding of its own.

Why it matters:
    A probability below 2⁻²⁴ is zero in fp16, and its logarithm −inf; above, small probabilities
    keep few bits. log_softmax never forms the probability.

Example:
    loss = -torch.log(torch.softmax(logits, -1)).gather(1, y)

Remedy:
    `F.cross_entropy(logits, y)` or `torch.log_softmax(logits, -1)`.

References:
    PyTorch documentation, torch.nn.functional.log_softmax
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import op_in
from fp16doctor.diagnose.usage_words import seen_in
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.usage import UsageKind


@rule(code="FD603", name="softmax-then-log", needs=("recording",))
def softmax_then_log(seen: Observations) -> Iterator[Finding]:
    """Yield one note per line, unless an examined step shows an infinity born there."""
    for fact in seen.used(UsageKind.SOFTMAX_THEN_LOG):
        if _has_event(seen, fact.site):
            continue
        yield Finding(
            code="FD603",
            name="softmax-then-log",
            severity=Severity.NOTE,
            fault=Fault.MISUSE,
            what=f"{op_in(fact.site)} is taken of a softmax that was rounded to {fact.format}",
            cause=(
                f"Small probabilities have few bits in {fact.format}, or none; the combined form "
                f"works on the logits. {seen_in(fact)}"
            ),
            site=fact.site,
            advice="use `torch.log_softmax` or `F.cross_entropy` on the logits",
        )


def _has_event(seen: Observations, site: OpSite) -> bool:
    """Whether an event was born at this op and line, or by a rounding before it."""
    line = site.source
    events = (e for t in seen.traces for e in t.events)
    return any(e.site.op == site.op and e.site.source == line for e in events)
