"""Passes on the change of code that a finding advises, tried where a tape can express it.

Must not know how the advice was found (``diagnose``).
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.constants import beyond_format, format_name, within_format
from fp16doctor.prescribe.edit import diff, receiver, with_number
from fp16doctor.prescribe.refusal import proof_of, refused_call, refused_finding
from fp16doctor.prescribe.treatable import SCALER_USE, line_target, target
from fp16doctor.replay.op_traits import base
from fp16doctor.schema.finding import Finding
from fp16doctor.schema.location import SourceLine
from fp16doctor.schema.policy import ConstantRule, PrecisionPolicy
from fp16doctor.schema.prescription import (
    Prescription,
    Remedy,
    RemedyKind,
    Verdict,
    Verification,
)
from fp16doctor.schema.spelling import number
from fp16doctor.schema.tape import OpCall, Tape

# Advice to change a format: the other remedies try that.
_FORMAT_ADVICE = ("keep `", "run `")
_LOOK_AGAIN = frozenset({"FD115"})
_DTYPES = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}
_NOT_EXPRESSED = "it needs an edit of the script, which was not tried"


def propose(case: Case) -> Iterator[Prescription]:
    """One change for every finding that demands action and advises something."""
    refused = refused_finding(case)
    for position, finding in case.demanding:
        if finding.code in _LOOK_AGAIN:
            continue  # what to examine next is no change of the training
        if case.bench is not None and finding.code in SCALER_USE:
            continue  # the recorded steps can be edited so: ``scaler_use`` tries it
        if refused is not None and position == refused[0]:
            held = _within_range(position, refused[2])
            if held is not None:
                yield held
                continue
        if finding.advice and not finding.advice.startswith(_FORMAT_ADVICE):
            places = () if finding.site is None else _line(finding)
            remedy = Remedy(RemedyKind.CODE_FIX, finding.advice, target=places)
            proof = Verification(Verdict.NOT_VERIFIED, reason=_NOT_EXPRESSED)
            yield Prescription(remedy, (position,), proof)


def _line(finding: Finding) -> tuple[str, ...]:
    """The line to change: the one where the reason lies, where it is known."""
    site = finding.cause_site or finding.site
    if site is None:
        return ()
    line = site.caller or site.source
    return (target(site),) if line is None else (f"line:{line.file}:{line.line}",)


def _within_range(position: int, tape: Tape) -> Prescription | None:
    """The constant that was refused, at the end of the format's range."""
    call = refused_call(tape)
    old, new = beyond_format(call), within_format(call)
    if old is None or new is None:
        return None
    place = line_target(call.site)
    end = "min" if new < 0 else "max"
    remedy = Remedy(
        RemedyKind.CODE_FIX,
        f"put `{_limit(call, end)}` ({number(new)} in {format_name(call)}) in place of "
        f"{number(old)}",
        change=_edited(call, old, end),
        target=(place,),
    )
    policy = PrecisionPolicy("constant", constants=(ConstantRule(place, old, new),))
    return Prescription(remedy, (position,), proof_of(tape, policy))


def _edited(call: OpCall, old: float, end: str) -> str:
    """The user's line with the changed number; what to put there where it is not on the line."""
    line, new = _line_of(call), _limit(call, end)
    change = "" if line is None else diff(line, with_number(line.text or "", old, new))
    place = line_target(call.site).partition(":")[2]
    return change or f"# {place}: {new} in place of {old!r}"


def _limit(call: OpCall, end: str) -> str:
    """The end of the format's range in the words of the line: of the tensor that it names."""
    line = _line_of(call)
    tensor = receiver(line.text or "", base(call.op)) if line is not None else None
    dtype = f"{tensor}.dtype" if tensor is not None else _DTYPES[format_name(call) or "fp16"]
    return f"torch.finfo({dtype}).{end}"


def _line_of(call: OpCall) -> SourceLine | None:
    return call.site.source or call.site.caller
