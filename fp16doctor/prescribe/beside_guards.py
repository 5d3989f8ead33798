"""A finding's own words beside what was found on its line: only the latter is told.

Must not know how a line is guarded.
"""

from __future__ import annotations

from collections.abc import Sequence

from fp16doctor.prescribe.treatable import beyond_formats
from fp16doctor.schema.finding import Finding
from fp16doctor.schema.prescription import Prescription, RemedyKind, Verdict


def without_advice(
    found: Sequence[Prescription], findings: Sequence[Finding]
) -> tuple[Prescription, ...]:
    """Return the prescriptions, a finding's advice left out where one says more of the place."""
    more = {
        i
        for p in found
        if is_of_place(p, findings)
        for i in p.treats
        if beyond_formats(findings[i])
    }
    return tuple(p for p in found if not (_is_advice(p, findings) and set(p.treats) <= more))


def is_of_place(cure: Prescription, findings: Sequence[Finding]) -> bool:
    """Tell whether a change of code was made for its place, and was not refuted there."""
    refuted = cure.verification.verdict is Verdict.REFUTED
    return (
        cure.remedy.kind is RemedyKind.CODE_FIX and not refuted and not _is_advice(cure, findings)
    )


def _is_advice(cure: Prescription, findings: Sequence[Finding]) -> bool:
    """A change of code in no other words than a finding's own."""
    advice = {findings[i].advice for i in cure.treats}
    return cure.remedy.kind is RemedyKind.CODE_FIX and cure.remedy.title in advice
