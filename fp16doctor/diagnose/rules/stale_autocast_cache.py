"""Forward reads 16-bit casts of weights that were made before the weights were updated.

What it checks:
    Casts of trained weights that outlive the step they were made in and are read by the forward
    of a later step, after an update of the weight.

Why it matters:
    Autocast keeps its casts until the outermost `with torch.autocast(…)` is left. Around the
    whole training loop it never is: the optimizer moves the fp32 weights, and forward goes on
    with the first casts. The loss for the same batch repeats.

Example:
    with torch.autocast("cuda", dtype=torch.float16):
        for x, y in batches:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()

Remedy:
    Put `with torch.autocast(…)` around forward and loss of each step, inside the loop.

References:
    PyTorch documentation, torch.autocast, "should wrap only the forward pass(es)"
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import subject
from fp16doctor.diagnose.usage_words import seen_in
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.usage import UsageKind


@rule(code="FD602", name="stale-autocast-cache", needs=("recording",))
def stale_autocast_cache(seen: Observations) -> Iterator[Finding]:
    """Yield one finding per line that reads an outdated cast first."""
    for fact in seen.used(UsageKind.STALE_CAST):
        yield Finding(
            code="FD602",
            name="stale-autocast-cache",
            severity=Severity.ERROR,
            fault=Fault.MISUSE,
            what=f"{subject(fact.site)} reads a {fact.format} cast of its weight made before the "
            "last update",
            cause=(
                "Autocast keeps its casts until its outermost block is left; the optimizer has "
                f"changed the weight since. {seen_in(fact)}"
            ),
            site=fact.site,
            reaches=("loss", "gradients"),
            advice=(
                "put `with torch.autocast(…)` around forward and loss inside the loop, not around "
                "the loop"
            ),
        )
