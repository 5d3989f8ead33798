"""A sum, mean, norm or variance passes the limit of its format while it is added up.

What it checks:
    Reductions (sum, mean, norm, variance, cumulative sum, product, logsumexp, scatter_add) whose
    exact result does not fit the format, and ops whose exact result fits while the kernel's own
    accumulation does not.

Why it matters:
    Many moderate addends pass fp16's 65504: 4096 squares of 4 do. A mean is a sum before the
    division, so it can overflow although the mean itself is small. The infinity then reaches the
    loss, or a division turns it into a finite wrong number.

Example:
    var = x.pow(2).sum(-1) / x.shape[-1]    # x in fp16, 4096 wide

Remedy:
    Accumulate in fp32: `x.sum(dtype=torch.float32)`, `x.float().norm()`. Autocast for CUDA does
    so for sum, prod, cumsum and norms; autocast for the CPU and pure fp16 models do not.

References:
    Micikevicius et al., Mixed Precision Training, arXiv 1710.03740, 3.3 (arithmetic precision);
    PyTorch documentation, Automatic Mixed Precision, op-specific behavior
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.causes import Cause, Words, as_finding, causes
from fp16doctor.diagnose.evidence import overflow_evidence
from fp16doctor.diagnose.families import NORMS, REDUCTIONS, base_op
from fp16doctor.diagnose.measures import magnitude
from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import fate, in_fp32, maximum, number, op_in, wider
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.trace import EventKind

# Reductions that take the format of their accumulation as an argument.
_WITH_DTYPE = frozenset(["sum", "nansum", "mean", "cumsum", "cumprod", "prod"])


@rule(code="FD102", name="reduction-overflow", needs=("recording", "traces"))
def reduction_overflow(seen: Observations) -> Iterator[Finding]:
    """Yield one finding per reduction that bore an infinity."""
    for cause in causes(seen, "reduction-overflow"):
        words = Words(_what(cause), f"{_why(cause)} {fate(cause)}", _advice(cause))
        yield as_finding(cause, "FD102", Fault.OVERFLOW, words, overflow_evidence(cause))


def _what(cause: Cause) -> str:
    event = cause.event
    size = magnitude(event)
    if event.kind is EventKind.INTERNAL_OVERFLOW:
        result = "" if size is None else f", although the exact result {number(size)} fits"
        return f"{op_in(event.site)} overflows {event.format} while it accumulates{result}"
    reach = "passes" if size is None else f"reaches {number(size)}, above"
    return f"{op_in(event.site)} {reach} {maximum(event.format)}"


def _why(cause: Cause) -> str:
    event = cause.event
    if event.kind is EventKind.INTERNAL_OVERFLOW:
        return f"A partial sum inside the op passes {maximum(event.format)}."
    return f"The inputs are finite; their accumulated value has no {event.format} value."


def _advice(cause: Cause) -> str:
    event = cause.event
    op = base_op(event.site.op)
    if cause.severity is Severity.NOTE:
        return ""
    if op in NORMS:
        return "compute the norm in fp32: `x.float()` before the norm"
    if op in _WITH_DTYPE:
        return f"accumulate in fp32: `x.{op}(…, dtype=torch.float32)`"
    if op in REDUCTIONS:
        return f"compute `{op}` in fp32: `x.float()` before it"
    return in_fp32(event.site) + wider(event.format)
