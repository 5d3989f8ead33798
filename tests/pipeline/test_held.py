"""What counts as a cure that holds for the script itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from fp16doctor.pipeline.held import beside_it, numbers, why_not_held
from fp16doctor.schema.diagnosis import Diagnosis, ReplaySummary
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.location import OpSite, Phase, SourceLine
from fp16doctor.schema.prescription import (
    Prescription,
    Recommendation,
    RecommendationStatus,
    Remedy,
    RemedyKind,
    Verdict,
    Verification,
)
from fp16doctor.schema.recording import Outcome, OutcomeKind, RunInfo, StepInfo

FALLING = [1.0 - 0.05 * i for i in range(15)]


def finding(code: str, line: int, fault: Fault = Fault.OVERFLOW) -> Finding:
    site = OpSite(0, Phase.FORWARD, "aten.mm.default", 0, source=SourceLine("t.py", line, "f"))
    return Finding(code, "name", Severity.ERROR, fault, "what it is", "cause", site)


def diagnosis(
    losses: Sequence[float],
    *findings: Finding,
    outcome: Outcome | None = None,
    kind: RemedyKind = RemedyKind.FP32_KEEP,
    skipped: int = 0,
) -> Diagnosis:
    ended = outcome or Outcome(OutcomeKind.FINISHED)
    steps = tuple(StepInfo(i, loss=x, skipped=i < skipped) for i, x in enumerate(losses))
    return Diagnosis(
        RunInfo("t.py", (), ended, "0", "2", "3", "cpu", "", 1.0), (), steps, (), findings,
        (Prescription(Remedy(kind, "cure"), (0,), Verification(Verdict.VERIFIED)),),
        Recommendation(RecommendationStatus.PRESCRIBED, "cure", (0,)),
        ReplaySummary((), None),
    )  # fmt: skip


BEFORE = diagnosis([math.nan] * 15, finding("FD101", 4))


def test_it_holds() -> None:
    assert why_not_held(BEFORE, diagnosis(FALLING)) == ""
    assert numbers(diagnosis(FALLING))["loss at the end"] == pytest.approx(0.35)


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (diagnosis(FALLING, finding("FD101", 9)), "FD101 is left: what it is"),
        (diagnosis(FALLING, finding("FD103", 4)), "FD103 is left: what it is"),
        (diagnosis(FALLING, finding("FD105", 9, Fault.NAN_BIRTH)), "FD105 is new: what it is"),
        (diagnosis([*FALLING[:-1], math.inf]), "not finite in one step: step 14"),
        (diagnosis(FALLING[:5]), "has 5 steps, the run before 15"),
        (diagnosis(FALLING, skipped=9), "9 of 15 steps are skipped"),
        (
            diagnosis(FALLING, outcome=Outcome(OutcomeKind.RAISED, 1, "ValueError", "no")),
            "ends with ValueError: no",
        ),
        (diagnosis(FALLING, outcome=Outcome(OutcomeKind.EXITED, 3)), "exits with status 3"),
    ],
)
def test_it_does_not_hold(after: Diagnosis, reason: str) -> None:
    assert reason in why_not_held(BEFORE, after)


def test_a_status_that_the_script_had_before_is_its_own() -> None:
    ended = Outcome(OutcomeKind.EXITED, 3)
    before = replace(BEFORE, run=replace(BEFORE.run, outcome=ended))
    assert why_not_held(before, diagnosis(FALLING, outcome=ended)) == ""


def test_the_loss_at_the_end_is_held_against_a_run_that_stayed_finite() -> None:
    before = diagnosis(FALLING, finding("FD201", 4))
    assert why_not_held(before, diagnosis([x * 1.02 for x in FALLING])) == ""
    assert "worse than 0.35 as run" in why_not_held(before, diagnosis([x + 1 for x in FALLING]))


def test_lost_updates_that_a_fault_hid_stand_beside_a_keep_list_but_not_beside_a_format() -> None:
    after = diagnosis(FALLING, finding("FD301", 9, Fault.LOST_UPDATE))
    assert why_not_held(BEFORE, after) == ""
    assert beside_it(BEFORE, after) == "FD301 shows now: what it is"
    bf16 = diagnosis([math.nan] * 15, finding("FD101", 4), kind=RemedyKind.DTYPE)
    assert why_not_held(bf16, after) == "FD301 is new: what it is"
