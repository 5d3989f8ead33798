"""An op makes NaN of finite values, and the reference run does not.

What it checks:
    Ops with finite inputs and a non-finite output where exact arithmetic on these inputs is
    non-finite as well, while the same op is finite in the reference run: an earlier rounding
    moved an operand out of the op's domain. Also ops that could not be replayed.

Why it matters:
    A value that is 1e-8 in fp32 can be −3e-4 in fp16, a difference of two nearly equal numbers;
    its square root is NaN. One NaN reaches every parameter through the gradient.

Example:
    std = (x.pow(2).mean() - x.mean().pow(2)).sqrt()    # negative in fp16

Remedy:
    Compute the operand in fp32, in a form without cancellation, or clamp it to the domain.

References:
    IEEE 754-2019, 7.2 (invalid operations);
    Higham, Accuracy and Stability of Numerical Algorithms, 1.7 (cancellation), 1.9 (variance)
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.causes import Cause, Words, as_finding, causes
from fp16doctor.diagnose.domain_words import domain_advice
from fp16doctor.diagnose.evidence import failing_evidence, operand_evidence
from fp16doctor.diagnose.families import base_op, changed_operand
from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import born, fails_anyway, fate, in_fp32, number, op_in, place
from fp16doctor.schema.finding import Evidence, Fault, Finding, Severity
from fp16doctor.schema.trace import Event, EventKind


@rule(code="FD110", name="nan-birth", needs=("recording", "traces"))
def nan_birth(seen: Observations) -> Iterator[Finding]:
    """Yield one finding per op that left its domain because of an earlier rounding."""
    for cause in causes(seen, "nan-birth"):
        why = f"{_why(cause)} {fate(cause)}{fails_anyway(cause)}"
        words = Words(_what(cause), why, _advice(cause))
        yield as_finding(cause, "FD110", Fault.NAN_BIRTH, words, _evidence(cause))


def _what(cause: Cause) -> str:
    event, policy = cause.event, cause.trace.reference
    if event.kind is EventKind.UNKNOWN:
        return f"{op_in(event.site)} makes {born(cause)} of finite values"
    operand = changed_operand(event)
    of = "" if operand is None else f" of {number(operand[1])}"
    beside = "finite" if event.reference is None else number(event.reference)
    return f"{op_in(event.site)}{of} is {born(cause)}; the {policy} replay has {beside}"


def _why(cause: Cause) -> str:
    event = cause.event
    if event.kind is EventKind.UNKNOWN:
        return "Likely a fault inside the op: its inputs are finite, and it cannot be replayed."
    operand = changed_operand(event)
    if operand is None:
        return _moved_upstream(event)
    role, as_run, reference = operand
    moved = (
        f"Rounding moved `{role}` from {number(reference)} to {number(as_run)}, "
        f"out of the domain of `{base_op(event.site.op)}`"
    )
    return moved + (
        "." if event.cause_site is None else f"; it began in {place(event.cause_site)}."
    )


def _moved_upstream(event: Event) -> str:
    """The operands are not at hand: what is known of the op whose rounding did it."""
    op = base_op(event.site.op)
    if event.cause_site is None or event.cause_as_run is None or event.cause_exact is None:
        return f"An earlier rounding moved an operand out of the domain of `{op}`."
    return (
        f"Rounding in {place(event.cause_site)} moved a value from {number(event.cause_exact)} to "
        f"{number(event.cause_as_run)}, which leads out of the domain of `{op}`."
    )


def _advice(cause: Cause) -> str:
    event = cause.event
    if cause.severity is Severity.NOTE:
        return ""
    if event.kind is EventKind.UNKNOWN:
        return f"look at `{event.site.op}`: {in_fp32(event.site)} and compare"
    if cause.fails_anyway:
        return domain_advice(event)
    source = event.cause_site or event.site
    return (
        f"{in_fp32(source)}, so that the operand keeps its sign, or clamp it to the domain of "
        f"`{base_op(event.site.op)}`"
    )


def _evidence(cause: Cause) -> tuple[Evidence, ...]:
    operand = changed_operand(cause.event)
    moved = () if operand is None else (operand_evidence(*operand, cause.trace.reference),)
    return (*moved, *failing_evidence(cause))
