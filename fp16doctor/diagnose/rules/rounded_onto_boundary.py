"""Rounding put a value exactly onto 0 or 1, where the next op has a pole.

What it checks:
    Logarithms, divisions and roots whose operand is exactly 0, 1 or −1 as run and is not in the
    reference run: log(0), 1/0, 0/0, log1p(−1). The op whose rounding did it is named as well.

Why it matters:
    fp16 knows nothing between 0 and 2⁻²⁴: a probability of 1e-8 is 0 and its logarithm −inf; an
    eps of 1e-8 is 0 and protects no division. Just below 1 the spacing is 2⁻¹¹, so 1 − p is 0
    for p above 0.9998.

Example:
    loss = -torch.log(torch.softmax(logits, -1))    # fp16: log(0)

Remedy:
    Use the combined form (log_softmax, cross_entropy, logsigmoid,
    binary_cross_entropy_with_logits), an eps the format can hold, or fp32 for these lines.

References:
    IEEE 754-2019, 7.3 (division by zero), 7.5 (underflow);
    PyTorch documentation, torch.nn.functional.log_softmax
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from fp16doctor.diagnose.causes import Cause, Words, as_finding, causes
from fp16doctor.diagnose.domain_words import domain_advice, is_outside
from fp16doctor.diagnose.evidence import failing_evidence, operand_evidence
from fp16doctor.diagnose.families import (
    DIVISIONS,
    LOGARITHMS,
    base_op,
    changed_operand,
    moved_operand,
)
from fp16doctor.diagnose.limits import limits
from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import born, fails_anyway, fate, in_fp32, number, op_in, place
from fp16doctor.diagnose.stored_words import stored_evidence, stored_words
from fp16doctor.formats.scalar import round_scalar
from fp16doctor.schema.finding import Evidence, Fault, Finding, Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.trace import Event

_GUARDS = frozenset(["add", "clamp", "clamp_min", "maximum"])  # ops that an eps goes into
_EPS = re.compile(r"eps|\b\d*\.?\d*e-\d+", re.IGNORECASE)


@rule(code="FD111", name="rounded-onto-boundary", needs=("recording", "traces"))
def rounded_onto_boundary(seen: Observations) -> Iterator[Finding]:
    """Yield one finding per op that met a value rounded onto its pole."""
    for cause in causes(seen, "rounded-onto-boundary"):
        stored = cause.event.stored
        if stored is not None:
            held = (stored_evidence(stored),)
            yield as_finding(cause, "FD111", Fault.NAN_BIRTH, stored_words(cause, stored), held)
            continue
        why = f"{_why(cause)} {fate(cause)}{fails_anyway(cause)}"
        words = Words(_what(cause), why, _advice(cause))
        yield as_finding(cause, "FD111", Fault.NAN_BIRTH, words, _evidence(cause))


def _moved(event: Event) -> tuple[float, float] | None:
    """The value that was moved: (as run, in the reference)."""
    operand = moved_operand(event)
    if operand is not None:
        return operand[1], operand[2]
    if event.cause_as_run is None or event.cause_exact is None:
        return None
    return event.cause_as_run, event.cause_exact


def _what(cause: Cause) -> str:
    event, moved = cause.event, _moved(cause.event)
    name = f"{op_in(event.site)} is {born(cause)}"
    if moved is None:
        return f"{name}: a value was rounded to where the op has no finite result"
    as_run, reference = moved
    if _is_upstream(event):
        return f"{_change_upstream(cause, as_run, reference)}, so that {name}{_of(event)}"
    if is_outside(event.site.op, reference):
        replayed = f"{number(reference)} in the {cause.trace.reference} replay"
        return f"{name}, given a value outside its domain: {replayed}"
    if _is_one_rounding(event, as_run, reference):
        what = f"{_role(event)}{number(reference)}"
        return f"{what} is {number(as_run)} in {event.format}, so that {name}"
    return (
        f"a value that is {number(reference)} in the {cause.trace.reference} replay became "
        f"{number(as_run)}, so that {name}"
    )


def _role(event: Event) -> str:
    """``the divisor `` where the value is one; an optimizer's is a root and its eps."""
    divides = base_op(event.site.op) in DIVISIONS - {"rsqrt"}
    last = bool(event.operands) and moved_operand(event) == event.operands[-1]
    if not (divides and last):
        return ""
    source = base_op(event.cause_site.op) if event.cause_site is not None else ""
    of_optimizer = event.site.phase is Phase.OPTIMIZER and source in _GUARDS
    return "the optimizer's divisor (root + eps) " if of_optimizer else "the divisor "


def _is_upstream(event: Event) -> bool:
    """Whether the value that was moved is another than the op's own operand at the element."""
    if moved_operand(event) is not None or event.cause_site is None:
        return False
    return bool(event.operands) or is_outside(event.site.op, event.cause_exact or 0.0)


def _of(event: Event) -> str:
    operand = changed_operand(event)
    return "" if operand is None else f" at {number(operand[1])}"


def _change_upstream(cause: Cause, as_run: float, reference: float) -> str:
    event = cause.event
    made = (
        "an earlier value" if event.cause_site is None else f"what {op_in(event.cause_site)} gave"
    )
    return f"{made} is {number(as_run)}, in the {cause.trace.reference} replay {number(reference)}"


def _is_one_rounding(event: Event, as_run: float, reference: float) -> bool:
    """Whether the format itself has no other value there; else several roundings led to it."""
    return round_scalar(reference, limits(event.format)) == as_run


def _why(cause: Cause) -> str:
    event, moved = cause.event, _moved(cause.event)
    where = "" if event.cause_site is None else f" in {place(event.cause_site)}"
    if moved is None:
        return f"A rounding{where} moved an operand onto a pole of `{base_op(event.site.op)}`."
    as_run, reference = moved
    if not _is_upstream(event) and is_outside(event.site.op, reference):
        return (
            f"Rounding moved the operand from {number(reference)} to {number(as_run)}; both lie "
            f"outside the domain of `{base_op(event.site.op)}`."
        )
    if not _is_one_rounding(event, as_run, reference):
        return (
            f"The {cause.trace.reference} replay has {number(reference)}, which {event.format} "
            f"holds; roundings{where or ' in front of it'} led to {number(as_run)}."
        )
    fmt = limits(event.format)
    # Next to 1 the format's spacing is to blame, next to 0 its smallest number.
    bound = f"the smallest non-zero magnitude is {number(fmt.smallest_subnormal)}"
    if as_run != 0:
        bound = f"the spacing below 1 is {number(fmt.eps / 2)}"
    return (
        f"The {cause.trace.reference} replay has {number(reference)}; rounding{where} made it "
        f"{number(as_run)} ({event.format}: {bound})."
    )


def _advice(cause: Cause) -> str:
    event = cause.event
    if cause.severity is Severity.NOTE:
        return ""
    if cause.fails_anyway:
        return domain_advice(event)
    source = base_op(event.cause_site.op) if event.cause_site is not None else ""
    op, fmt = base_op(event.site.op), limits(event.format)
    if "softmax" in source:
        return "use `torch.log_softmax` or `F.cross_entropy` on the logits"
    if "sigmoid" in source:
        return "use `F.logsigmoid` or `F.binary_cross_entropy_with_logits` on the logits"
    if op in LOGARITHMS:
        return f"compute the operand and its logarithm in fp32: {in_fp32(event.site)}"
    if op in DIVISIONS and not _has_eps(event, source):
        made = in_fp32(event.cause_site or event.site)
        return (
            f"compute the divisor in fp32: {made}; or keep it away from 0 with a number that "
            f"{event.format} can hold, at least {number(fmt.smallest_normal)}"
        )
    if op in DIVISIONS:
        return (
            f"raise eps to a value that {event.format} can hold, at least "
            f"{number(fmt.smallest_normal)} (smallest subnormal {number(fmt.smallest_subnormal)}), "
            "or divide in fp32"
        )
    return in_fp32(event.cause_site or event.site)


def _has_eps(event: Event, source: str) -> bool:
    """Whether something was done against a divisor of 0: by the op that made it, or on the line."""
    sites = (event.site, event.cause_site)
    texts = [s.source.text or "" for s in sites if s is not None and s.source is not None]
    return source in _GUARDS or any(_EPS.search(text) for text in texts)


def _evidence(cause: Cause) -> tuple[Evidence, ...]:
    moved = _moved(cause.event)
    if moved is None:
        return failing_evidence(cause)
    operand = moved_operand(cause.event)
    measured = operand_evidence(operand[0] if operand else "", *moved, cause.trace.reference)
    upstream = _is_upstream(cause.event)
    measured = replace(measured, quantity="value upstream") if upstream else measured
    return (measured, *failing_evidence(cause))
