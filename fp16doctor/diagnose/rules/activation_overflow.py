"""A value computed in the forward pass or the loss is too large for its format.

What it checks:
    Every op of an examined step whose inputs are finite and whose output has an infinity where
    the exact result is finite. The first such op is named, not the ones that inherit it.
    Reductions, mask constants and gradients have rules of their own.

Why it matters:
    fp16 ends at 65504; a magnitude of 65520 or more becomes inf. A later subtraction or
    multiplication with 0 makes NaN of it, and NaN reaches the loss and every gradient. No loss
    scale helps: it acts on the backward pass only. Where a later op turns the infinity into a
    finite number (1/inf = 0), the loss stays finite and is wrong.

Example:
    y = self.wo(torch.nn.functional.gelu(self.wi(x)))    # fp16, |y| reaches 1.84e5

Remedy:
    Keep the module in fp32, or train in bf16, whose maximum is 3.39e38. Products of queries and
    keys: scale before the product. Exponentials: subtract the maximum first.

References:
    IEEE 754-2019, 4.3.1 (round to nearest even, overflow);
    Micikevicius et al., Mixed Precision Training, arXiv 1710.03740
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from fp16doctor.diagnose import families
from fp16doctor.diagnose.causes import Cause, Words, as_finding, causes
from fp16doctor.diagnose.evidence import overflow_evidence
from fp16doctor.diagnose.limits import limits
from fp16doctor.diagnose.measures import magnitude
from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import fate, in_fp32, maximum, number, subject, wider
from fp16doctor.diagnose.trends import Rise, rise_evidence, rise_to
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.trace import Event


@rule(code="FD101", name="activation-overflow", needs=("recording", "traces"))
def activation_overflow(seen: Observations) -> Iterator[Finding]:
    """Yield one finding per forward or loss op that bore an infinity."""
    for cause in causes(seen, "activation-overflow"):
        rise = rise_to(seen, cause.event.site)
        why = f"{_why(cause)} {fate(cause)}{_rising(rise)}"
        evidence = (*overflow_evidence(cause), *rise_evidence(rise))
        words = Words(_what(cause), why, _advice(cause))
        yield as_finding(cause, "FD101", Fault.OVERFLOW, words, evidence)


def _what(cause: Cause) -> str:
    event = cause.event
    size = magnitude(event)
    reach = "passes" if size is None else f"reaches {number(size)}, above"
    if size is not None and _is_cast(event) and not event.integer_operand:
        what = f"a value of {number(size)} is cast to {event.format} in {subject(event.site)}"
        return f"{what}, above {maximum(event.format)}"
    source = " converted from integers" if event.integer_operand else ""
    return f"the output of {subject(event.site)}{source} {reach} {maximum(event.format)}"


def _is_cast(event: Event) -> bool:
    return families.base_op(event.site.op) in ("to_copy", "to")


def _why(cause: Cause) -> str:
    event = cause.event
    if event.constant is not None:
        return f"The constant {number(event.constant)} is above {maximum(event.format)}."
    if event.integer_operand:
        return f"Integers beyond {maximum(event.format)} have no value in that format."
    return (
        f"First op of the step whose {event.format} result is infinite "
        "where the exact result on the same inputs is finite."
    )


def _rising(rise: Rise | None) -> str:
    if rise is None:
        return ""
    return (
        f" Its amax rose by {number(rise.per_100)} binades per 100 steps ({number(rise.low)} to "
        f"{number(rise.high)}) from step {rise.first} to step {rise.last}."
    )


def _advice(cause: Cause) -> str:
    event = cause.event
    if cause.severity is Severity.NOTE:
        return ""
    keep = in_fp32(event.site) + wider(event.format)
    op = families.base_op(event.site.op)
    threshold = limits(event.format).overflow_threshold
    if event.integer_operand:
        return f"create these values in fp32 or as integers; {event.format} cannot hold them"
    if families.is_square(event) and math.isfinite(threshold):
        return (
            f"compute the square in fp32 (`x.float()`): {event.format} squares overflow "
            f"above |x| = {number(math.sqrt(threshold))}"
        )
    if op in families.EXPONENTIALS and math.isfinite(threshold):
        return (
            "clamp the argument or subtract its maximum before the exponential, or compute it "
            "in fp32: "
            f"{event.format} overflows above x = {number(math.log(threshold))}"
        )
    if _is_cast(event):
        return f"scale or clamp the value in front of the cast, or {keep}"
    if op in families.BATCHED_PRODUCTS:
        return f"scale the operands before the product, or {keep}"
    return keep
