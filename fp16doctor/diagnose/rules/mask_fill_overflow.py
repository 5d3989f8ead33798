"""A mask value is −inf in the format of the scores it is written into or added to.

What it checks:
    Constants written into or added to a tensor that its format cannot hold (−1e9 in fp16), and
    sums of the most negative finite value with a bias that pass the limit (finfo.min + −16).

Why it matters:
    −inf in front of a softmax is harmless while every row keeps one finite entry: exp(−inf) is
    0. A row without any finite entry is −inf − (−inf) = NaN, where the same row in fp32 is a
    uniform distribution. The NaN reaches the loss.

Example:
    scores = scores + (1.0 - mask) * -1e9    # fp16: −inf, NaN for a row that is all padding

Remedy:
    Use a mask value that the format can hold and add nothing to it afterwards; give rows without
    any entry a result of their own, or compute the softmax in fp32.

References:
    IEEE 754-2019, 7.2 (inf − inf is an invalid operation);
    https://github.com/huggingface/transformers/issues/17306
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.causes import Cause, Words, as_finding, causes
from fp16doctor.diagnose.evidence import overflow_evidence
from fp16doctor.diagnose.limits import limits
from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import fate, maximum, number, op_in, subject
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.trace import Event


@rule(code="FD103", name="mask-fill-overflow", needs=("recording", "traces"))
def mask_fill_overflow(seen: Observations) -> Iterator[Finding]:
    """Yield one finding per op that made an infinity of a mask value."""
    for cause in causes(seen, "mask-fill-overflow"):
        words = Words(_what(cause.event), f"{_why(cause.event)} {fate(cause)}", _advice(cause))
        yield as_finding(cause, "FD103", Fault.OVERFLOW, words, overflow_evidence(cause))


def _what(event: Event) -> str:
    value = event.constant if event.constant is not None else event.exact
    if value is None:
        return f"a mask value in {subject(event.site)} passes {maximum(event.format)}"
    return (
        f"mask value {number(value)} in {subject(event.site)} is {_infinity(value)} "
        f"in {event.format}, beyond {maximum(event.format)}"
    )


def _infinity(value: float) -> str:
    return "−inf" if value < 0 else "inf"


def _why(event: Event) -> str:
    if event.constant is not None:
        return f"The constant {number(event.constant)} has no finite {event.format} value."
    terms = " and ".join(number(run) for _, run, _ in event.operands)
    return f"{op_in(event.site)} combines {terms}, whose exact result has no {event.format} value."


def _advice(cause: Cause) -> str:
    if cause.severity is Severity.NOTE:
        return ""
    largest = number(-limits(cause.event.format).max)
    return (
        "use a finite mask value for rows without any entry: fill with "
        f"`torch.finfo(scores.dtype).min` ({largest} in {cause.event.format}) after every bias "
        "was added, or compute the softmax in fp32"
    )
