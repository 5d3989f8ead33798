"""Of the first steps that go wrong every module's largest magnitude is kept, surveyed or not."""

from __future__ import annotations

import math

import torch
from torch import nn

from fp16doctor.record.range_hooks import Look
from fp16doctor.record.range_track import Track
from fp16doctor.record.recorder import Recorder
from fp16doctor.record.source_lines import SourceLines
from fp16doctor.record.survey import KEPT_WRONG
from fp16doctor.record.survey_plan import SurveyPlan
from fp16doctor.schema.ranges import Extreme, ModuleRanges


def outputs(factors: list[float], look: Look) -> dict[str, ModuleRanges]:
    watch = Recorder(
        SourceLines("."),
        lambda recorder, roll: None,
        lambda step: None,
        plan=SurveyPlan(lambda step: look),
        wants_tape=lambda step: False,
    )
    model = nn.Sequential(nn.Linear(2, 2), nn.Identity())
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2))
        model[0].bias.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    watch.start()
    for factor in factors:
        optimizer.zero_grad()
        model(torch.full((3, 2), 2.0)).mul(factor).sum().backward()
        optimizer.step()
    watch.stop()
    return {r.module_path: r for r in watch.survey.ranges() if r.role == "output"}


def test_the_step_that_goes_wrong_is_kept_for_modules_that_stay_finite() -> None:
    seen = outputs([1.0, math.inf], Look.SCREEN)
    for path in ("0", "1", ""):
        assert seen[path].extremes == (Extreme(1, 2.0, nonfinite=False),)


def test_only_the_first_few_are_kept() -> None:
    seen = outputs([math.inf] * (KEPT_WRONG + 3), Look.SCREEN)
    assert [e.step for e in seen["0"].extremes] == list(range(KEPT_WRONG))


def test_a_step_with_full_statistics_needs_no_more() -> None:
    seen = outputs([1.0, math.inf], Look.FULL)
    assert seen["0"].extremes == ()
    assert seen["0"].steps == (0, 1)


def test_a_run_without_fault_keeps_none() -> None:
    assert outputs([1.0] * 3, Look.SCREEN)["0"].extremes == ()


def test_a_step_in_two_parts_is_one_extreme() -> None:
    track = Track("a", "Linear", "output")
    for magnitude in (math.inf, 3.0):
        track.screened(magnitude)
        track.close(5, 1.0, keep=True)
    assert track.ranges().extremes == (Extreme(5, 3.0, nonfinite=True),)
