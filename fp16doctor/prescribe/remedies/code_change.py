"""Passes on the change of code that a finding advises.

Must not know how the advice was found (``diagnose``).
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.treatable import SCALER_USE, target
from fp16doctor.schema.finding import Finding
from fp16doctor.schema.prescription import (
    Prescription,
    Remedy,
    RemedyKind,
    Verdict,
    Verification,
)

# Advice to change a format: the other remedies try that.
_FORMAT_ADVICE = ("keep `", "run `")
_NOT_EXPRESSED = "it needs an edit of the script, which was not tried"


def propose(case: Case) -> Iterator[Prescription]:
    """One change for every finding that demands action and advises something."""
    for position, finding in case.demanding:
        if case.bench is not None and finding.code in SCALER_USE:
            continue  # the recorded steps can be edited so: ``scaler_use`` tries it
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
