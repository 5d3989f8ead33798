"""A sum kept in 16 bits no longer takes what is added to it.

What it checks:
    16-bit tensors that a step writes in place eight times or more, gradient accumulation buffers
    above all: how much of the sum the same additions in fp32 would give arrives in them.

Why it matters:
    The more has gathered, the larger the spacing: bf16 swallows an addend below 2⁻⁹ of the sum, so
    that after about 2⁸ equal addends nothing more arrives.

Example:
    for micro in batches:                 # 256 of them
        buffer.add_(p.grad.to(torch.bfloat16), alpha=1 / 256)

Remedy:
    Accumulate in fp32, for instance in the .grad of fp32 parameters.

References:
    https://github.com/pytorch/pytorch/issues/106395; Higham, Accuracy and Stability of Numerical
    Algorithms, chapter 4.
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import counted, place
from fp16doctor.diagnose.shares import ACCUMULATED, has_stopped, is_accumulator
from fp16doctor.diagnose.update_words import arrives, movement, spacing
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.precision import UpdateLoss


@rule(code="FD303", name="swamped-accumulation", needs=("updates",))
def swamped_accumulation(seen: Observations) -> Iterator[Finding]:
    """Yield one finding for all accumulators that fall behind."""
    sums = [u for u in seen.updates if is_accumulator(u)]
    behind = [
        u
        for u in sums
        if u.realised < ACCUMULATED or (u.bias or 0.0) > 1 - ACCUMULATED or has_stopped(u)
    ]
    if behind:
        yield _finding(behind, sums)


def _finding(behind: list[UpdateLoss], sums: list[UpdateLoss]) -> Finding:
    worst = min(behind, key=lambda u: u.realised)
    return Finding(
        code="FD303",
        name="swamped-accumulation",
        severity=Severity.ERROR,
        fault=Fault.LOST_UPDATE,
        what=(
            f"{len(behind)} of {counted(len(sums), f'{worst.format} sum')} lose what is added to "
            f"them: over {worst.n_writes} additions a step {arrives(worst)}"
        ),
        cause=f"{spacing(worst)} {place(worst.site)} adds to the tensor {worst.n_writes} times a "
        "step; the larger the sum, the less of each addend is left.",
        site=worst.site,
        evidence=movement(worst),
        consequences=len(behind) - 1,
        reaches=("gradients",),
        advice="accumulate in fp32, for instance in the `.grad` of fp32 parameters",
    )
