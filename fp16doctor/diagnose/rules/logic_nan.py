"""A non-finite value that fp32 has as well: not a matter of precision.

What it checks:
    Ops with finite inputs whose output is non-finite as run and in the reference run alike, where
    the value reaches the loss, a gradient, a parameter or a buffer.

Why it matters:
    No format, loss scale or keep-list changes it: a mask row without any entry, a logarithm of a
    negative number, a division by a count of 0, the gradient of a root at 0. A search for the
    right dtype would be in vain.

Example:
    mean = (x * mask).sum() / mask.sum()    # 0/0 for a sample without any entry

Remedy:
    Repair the line named, or the batch element it met: clamp the divisor, guard the empty row,
    add eps under the root.

References:
    IEEE 754-2019, 7.2 (invalid operations) and 7.3 (division by zero)
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.causes import Cause, Words, as_finding, causes
from fp16doctor.diagnose.domain_words import domain_advice
from fp16doctor.diagnose.families import DIVISIONS, LOGARITHMS, base_op
from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import born, fate, number, op_in, place
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.location import OpSite, Phase

# Ops whose operands alone make the result not finite: a constant may be what does it in others.
_OF_THEIR_OPERANDS = DIVISIONS | LOGARITHMS | {"sqrt", "acos", "asin", "atanh"}
_MOST_VALUES = 2  # operands of an op that one clause has room for
_BATCHED = frozenset({Phase.FORWARD, Phase.LOSS, Phase.BACKWARD})


@rule(code="FD112", name="logic-nan", needs=("recording", "traces"))
def logic_nan(seen: Observations) -> Iterator[Finding]:
    """Yield one finding per op whose non-finite result is there in the reference run as well."""
    for cause in causes(seen, "logic-nan"):
        words = Words(_what(cause), f"{_why(cause)} {fate(cause)}", _advice(cause))
        yield as_finding(cause, "FD112", Fault.NAN_BIRTH, words)


def _batch_element(site: OpSite) -> str:
    """Empty where the first dimension is not the batch: an optimizer works on parameters."""
    if not site.element or site.phase not in _BATCHED:
        return ""
    return f" at batch element {site.element[0]}"


def _what(cause: Cause) -> str:
    site = cause.event.site
    values = [number(run) for _, run, _ in cause.event.operands]
    tells = base_op(site.op) in _OF_THEIR_OPERANDS and 0 < len(values) <= _MOST_VALUES
    of = f", given {' and '.join(values)}," if tells else ""
    return (
        f"{op_in(site)}{of} is {born(cause)}{_batch_element(site)}, "
        f"in the {cause.trace.reference} replay as well"
    )


def _why(cause: Cause) -> str:
    event = cause.event
    values = ", ".join(f"`{role}` = {number(run)}" for role, run, _ in event.operands)
    met = f" with {values}" if values else ""
    return (
        f"{place(event.site)}{met} has no finite result in any format: "
        "no dtype, loss scale or keep-list changes it."
    )


def _advice(cause: Cause) -> str:
    site = cause.event.site
    if cause.severity is Severity.NOTE:
        return ""
    if site.phase is Phase.BACKWARD:
        return domain_advice(cause.event)
    check = f"check the input of `{base_op(site.op)}`{_batch_element(site)}"
    return f"{check}: {domain_advice(cause.event)}"
