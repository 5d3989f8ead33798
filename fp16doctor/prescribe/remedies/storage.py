"""Proposes fp32 storage where 16-bit tensors do not take their updates.

Must not know how updates are measured.
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.prescribe import masters
from fp16doctor.prescribe.bench import BUDGET_SPENT
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.stored import (
    REALISED,
    REALISED_FRACTION,
    realised_in_fp32,
    stored_in,
)
from fp16doctor.schema.finding import Fault, Finding
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.prescription import (
    Prescription,
    Remedy,
    RemedyKind,
    Verdict,
    Verification,
)

CODES = frozenset({"FD301", "FD302", "FD303"})
PARAMETERS = (
    "keep the parameters in fp32 and compute under autocast (fp32 master weights)",
    "model = model.float()  # where it was cast to 16 bits\n"
    "with torch.autocast(DEVICE, dtype=torch.FORMAT):\n"
    "    ...  # forward and loss",
)


def propose(case: Case) -> Iterator[Prescription]:
    """One prescription for each finding of lost updates."""
    with_steps = masters.treated(case)  # parameters in fp32 are tried on whole steps for these
    for position, finding in case.demanding:
        if position in with_steps:
            continue
        if finding.fault is Fault.LOST_UPDATE and finding.code in CODES:
            yield _prescription(case, position, finding)


def _prescription(case: Case, position: int, finding: Finding) -> Prescription:
    if finding.code == "FD301":
        remedy = parameters_remedy(case)
    else:
        title, change = _tensor(finding.site)
        remedy = Remedy(RemedyKind.STORAGE, title, change=change, value="fp32")
    return Prescription(remedy, (position,), proof_of(case, finding))


def parameters_remedy(case: Case) -> Remedy:
    """Return the change to fp32 parameters, and autocast in the format that they were stored in."""
    title, change = PARAMETERS
    formats = (stored_in(t) for t in (case.bench.tapes if case.bench is not None else ()))
    dtype = next(filter(None, formats), "bfloat16")
    change = change.replace("DEVICE", repr(case.device)).replace("FORMAT", dtype)
    return Remedy(RemedyKind.STORAGE, title, change=change, value="fp32")


def _tensor(site: OpSite | None) -> tuple[str, str]:
    """Title and change: what the tensor is called is not known, where it is written is."""
    line = None if site is None else site.caller or site.source
    at = "" if line is None else f" written at `{line.file}:{line.line}`"
    place = "" if line is None else f"{line.file}:{line.line}: "
    return (
        f"keep the tensor{at} in fp32",
        f"# {place}create the tensor that this line writes in torch.float32, and cast a copy "
        "where 16 bits are needed",
    )


def proof_of(case: Case, finding: Finding) -> Verification:
    """Return which part of the updates that a finding misses fp32 storage takes."""
    if case.bench is None or not case.bench.tapes:
        return Verification(Verdict.NOT_VERIFIED, reason="no step was kept to try it on")
    if case.bench.exhausted:
        case.bench.time.leave("fp32 storage")
        return Verification(Verdict.NOT_VERIFIED, reason=BUDGET_SPENT)
    before = next((e.measured for e in finding.evidence if "realised" in e.quantity), 0.0)
    with case.bench.timing():
        after, steps = realised_in_fp32(case.bench.tapes, parameters=finding.code == "FD301")
    if after is None:
        return Verification(Verdict.NOT_VERIFIED, reason="the kept steps hold no update")
    held = after >= REALISED
    return Verification(
        Verdict.VERIFIED if held else Verdict.REFUTED,
        reason="" if held else "fp32 loses the updates as well",
        before={REALISED_FRACTION: before},
        after={REALISED_FRACTION: after},
        steps=steps,
    )
