from __future__ import annotations

import dataclasses

import pytest
from making import attempts, event, observed, plain, scaled_trace

from fp16doctor.diagnose.rules.collapsing_loss_scale import collapsing_loss_scale
from fp16doctor.prescribe.remedies.loss_scale import of_the_scale
from fp16doctor.schema.finding import Fault, Severity
from fp16doctor.schema.recording import Outcome, OutcomeKind, StepInfo

FIRING = observed(steps=attempts("." * 5 + "s" * 20))
SILENT = observed(steps=attempts("sss" + "." * 40 + "s" + "." * 20))
STOPPED = Outcome(OutcomeKind.STOPPED)


def test_says_how_many_steps_were_taken() -> None:
    (finding,) = collapsing_loss_scale(FIRING)
    assert "from 65536 to 2⁻⁴: 5 of 25 optimizer steps were taken" in finding.what
    assert (finding.fault, finding.severity) == (Fault.LOSS_SCALE, Severity.ERROR)
    assert finding.site is None


def test_site_is_the_op_that_made_found_inf() -> None:
    culprit = event(step=7)
    seen = dataclasses.replace(FIRING, traces=(scaled_trace(culprit, step=7),))
    (finding,) = collapsing_loss_scale(seen)
    assert finding.site == culprit.site


@pytest.mark.parametrize(
    ("pattern", "scale"),
    [("...sss", 65536.0), ("sss", 65536.0), ("ssss.ss.ss..", 65536.0), (".s.", 1.0)],
    ids=["ends skipped", "only skipped", "most skipped", "below one"],
)
def test_collapses(pattern: str, scale: float) -> None:
    assert len(list(collapsing_loss_scale(observed(steps=attempts(pattern, scale))))) == 1


@pytest.mark.parametrize(
    ("pattern", "scale", "severity"),
    [
        (".....s..s.....", 1.0, Severity.WARNING),  # below one, and training goes on
        (".....s......ss", 1.0, Severity.WARNING),  # two skips end many a sound run
        ("...........sss", 1.0, Severity.ERROR),  # does not recover
        ("ss.ss.ss.ss.s.", 65536.0, Severity.ERROR),  # most are skipped
    ],
)
def test_severity_follows_what_is_still_trained(
    pattern: str, scale: float, severity: Severity
) -> None:
    (finding,) = collapsing_loss_scale(observed(steps=attempts(pattern, scale)))
    assert finding.severity is severity


@pytest.mark.parametrize(
    "pattern", ["ss....", "....ss", "sss...", "s" * 16 + "." * 12, "s....s....s....s....", ""]
)
def test_ordinary_skips(pattern: str) -> None:
    assert not list(collapsing_loss_scale(observed(steps=attempts(pattern))))


def test_a_run_stopped_in_warm_up_says_nothing_yet() -> None:
    assert not list(collapsing_loss_scale(observed(steps=attempts("ssss"), outcome=STOPPED)))
    assert list(collapsing_loss_scale(observed(steps=attempts(".sss"), outcome=STOPPED)))


def test_a_running_script_is_judged_by_its_scale_only() -> None:
    assert not list(collapsing_loss_scale(observed(steps=attempts("s" * 12), final=False)))
    assert list(collapsing_loss_scale(observed(steps=attempts("s" * 18), final=False)))


def test_runs_without_scaler() -> None:
    assert not list(collapsing_loss_scale(observed(steps=plain(10))))


def steep(turns: int) -> tuple[StepInfo, ...]:
    """Each step taken raises the scale fourfold, and two are skipped for it."""
    rows = [(1.0, False), (4.0, True), (2.0, True)] * turns
    return tuple(
        StepInfo(n, loss=2.0, loss_scale=1024 * scale, found_inf=skipped, skipped=skipped)
        for n, (scale, skipped) in enumerate(rows)
    )


@pytest.mark.parametrize(
    ("steps", "times", "severity", "factor"),
    [
        (attempts("^s" * 10), 10, Severity.ERROR, ""),
        (attempts("^s" + "..^s" * 5), 6, Severity.WARNING, ""),
        (steep(6), 6, Severity.ERROR, "`growth_factor=2`"),
    ],
)
def test_a_scale_that_is_raised_at_once(
    steps: tuple[StepInfo, ...], times: int, severity: Severity, factor: str
) -> None:
    (finding,) = collapsing_loss_scale(observed(steps=steps))
    assert f"raised the loss scale {times} times" in finding.what
    assert finding.severity is severity
    assert "`growth_interval`" in finding.advice
    assert factor in finding.advice
    assert not of_the_scale(finding)


@pytest.mark.parametrize(
    "pattern",
    ["...^s" * 8, ".....^" * 4 + "...", "^^^...." + "s..." * 3, "^s^s^s", "^^^^.." + "..ss.." * 9],
    ids=["a fifth", "raised, none skipped", "raised before", "few attempts", "below the raises"],
)
def test_raises_that_cost_little(pattern: str) -> None:
    found = collapsing_loss_scale(observed(steps=attempts(pattern)))
    assert not [f for f in found if "raised" in f.what]


def test_a_scale_that_is_raised_while_it_falls_below_one_has_fallen() -> None:
    (finding,) = collapsing_loss_scale(observed(steps=attempts("^s^s^sss" * 3, 2.0)))
    assert "the scale is below 1" in finding.what
    assert of_the_scale(finding)
