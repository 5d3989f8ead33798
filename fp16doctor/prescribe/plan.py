"""From findings to prescriptions and one recommendation.

Cures are not tried in this version, and every prescription says so. Must not know the words of
findings or how a report shows a cure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fp16doctor.prescribe.remedies import proposals
from fp16doctor.prescribe.treatable import demanding
from fp16doctor.schema.finding import Fault, Finding
from fp16doctor.schema.prescription import (
    Prescription,
    Recommendation,
    RecommendationStatus,
    Verdict,
    Verification,
)
from fp16doctor.schema.trace import ReplayTrace

NOT_TRIED = Verification(Verdict.NOT_VERIFIED, reason="cures are not replayed by this version")
_LOGIC = "logic-nan"


class Examined(Protocol):
    """What a plan wants to know of the run: the examined steps."""

    @property
    def traces(self) -> tuple[ReplayTrace, ...]:
        """Examined steps."""


def plan(
    findings: Sequence[Finding], seen: Examined
) -> tuple[tuple[Prescription, ...], Recommendation]:
    """Prescriptions for ``findings`` (ranked, as in the diagnosis) and the answer in a sentence."""
    prescriptions = tuple(
        Prescription(remedy, treats, NOT_TRIED) for remedy, treats in proposals(findings)
    )
    return prescriptions, _recommendation(findings, seen)


def _recommendation(findings: Sequence[Finding], seen: Examined) -> Recommendation:
    leading = next((finding for _, finding in demanding(findings)), None)
    if leading is None:
        return Recommendation(
            RecommendationStatus.NONE_NEEDED, "nothing that was examined demands a change"
        )
    if leading.name == _LOGIC:
        return Recommendation(
            RecommendationStatus.NOT_PRECISION,
            f"not a matter of precision: {leading.what}; no format or loss scale changes it",
        )
    return Recommendation(RecommendationStatus.NONE_FOUND, _unverified(leading, seen))


def _unverified(leading: Finding, seen: Examined) -> str:
    """What the reference replay showed, and that no cure was tried."""
    ending = "no cure has been verified by this version"
    if leading.fault is Fault.MISUSE:
        return f"the script stops before precision matters: {leading.what}; {ending}"
    step = None if leading.site is None else leading.site.step
    compared = (t for t in seen.traces if t.reference != "none")
    trace = next((t for t in compared if t.step == step), None)
    if trace is None:
        return f"no reference replay is at hand; {ending}"
    return f"{_reference_result(trace)}; {ending}"


def _reference_result(trace: ReplayTrace) -> str:
    replay = f"the {trace.reference} replay of step {trace.step}"
    bad = [state.sink for state in trace.sinks if state.nonfinite_reference]
    if bad:
        return f"{replay} has non-finite values in {', '.join(bad)} as well"
    return f"{replay} is finite"
