"""Activations below the smallest normal number: few bits are left.

What it checks:
    16-bit results of forward and loss: the share of the sum of magnitudes that is subnormal, where
    the op's own inputs were not. What is only added to something larger does not count: a sum
    above 2⁻¹⁴ is itself no finer than the bits that were lost.

Why it matters:
    Below 2⁻¹⁴ fp16 loses a bit with every halving, from 10 down to 1 at 2⁻²⁴, and then becomes
    zero. Some processors flush all of it to zero.

Example:
    features = features * 1e-6

Remedy:
    Multiply later, or by a larger constant, or compute this part in fp32; bf16 has the range of
    fp32.

References:
    IEEE 754-2019, section 3.4; AMD matrix cores flush fp16 subnormals on MI200.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import floor, log2

from fp16doctor.diagnose.limits import limits
from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import in_fp32, number, op_in, place
from fp16doctor.diagnose.shares import LOST_TENSOR, finite_traces, is_changed
from fp16doctor.schema.finding import Evidence, Fault, Finding, Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.precision import OpLoss
from fp16doctor.schema.trace import ReplayTrace


@rule(code="FD202", name="subnormal-values", needs=("traces",))
def subnormal_values(seen: Observations) -> Iterator[Finding]:
    """Yield one finding a step kind: the first op most of whose result is subnormal."""
    found = [(is_changed(t), t, o) for t in finite_traces(seen) if (o := _first(t)) is not None]
    if found:
        changed, trace, loss = max(found, key=lambda f: (f[0], -f[1].step))
        yield _finding(trace, loss, Severity.WARNING if changed else Severity.NOTE)


def _first(trace: ReplayTrace) -> OpLoss | None:
    ops = trace.precision.ops if trace.precision is not None else ()
    return next(
        (
            o
            for o in ops
            if o.site.phase in (Phase.FORWARD, Phase.LOSS)
            and o.subnormal_share * o.exposed_share >= LOST_TENSOR
        ),
        None,
    )


def _finding(trace: ReplayTrace, loss: OpLoss, severity: Severity) -> Finding:
    fmt = limits(loss.format)
    bits = _bits_left(loss)
    return Finding(
        code="FD202",
        name="subnormal-values",
        severity=severity,
        fault=Fault.UNDERFLOW,
        what=(
            f"{op_in(loss.site)} is subnormal in {loss.format}: "
            f"{number(100 * loss.subnormal_share)} % of its mass is below "
            f"{number(fmt.smallest_normal)}"
        ),
        cause=(
            f"The largest result of {place(loss.site)} is {number(loss.amax_reference)}: "
            f"{bits} of {floor(-log2(fmt.eps))} bits behind the first are left there, fewer "
            "for smaller results."
        ),
        site=loss.site,
        evidence=(
            Evidence("amax", loss.amax_reference, f"replayed:{trace.reference}",
                     limit=fmt.smallest_normal, limit_name="smallest_normal", format=loss.format,
                     count=loss.underflows, total=loss.total),
        ),
        advice=f"{in_fp32(loss.site)}, or multiply by a larger constant",
    )  # fmt: skip


def _bits_left(loss: OpLoss) -> int:
    fmt = limits(loss.format)
    if not loss.amax_reference:
        return 0
    above = floor(log2(loss.amax_reference / fmt.smallest_subnormal))
    return max(0, min(above, floor(-log2(fmt.eps))))
