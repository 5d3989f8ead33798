"""A rise that carries values out of their format is told from a spike and from scatter."""

from __future__ import annotations

import dataclasses
import math

import pytest
from making import event, site, trace
from ranged import seen_ranges

from fp16doctor.diagnose.rule import Observations
from fp16doctor.diagnose.rules.activation_overflow import activation_overflow
from fp16doctor.diagnose.trends import rise_to
from fp16doctor.schema.finding import RISE
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.ranges import ModuleRanges, RangeStats

AT = site(step=205, module_path="score", module_class="Linear")


def measured(*amax: float, path: str = "score", every: int = 10, **facts: object) -> ModuleRanges:
    stats = tuple(RangeStats(8, 0, 0, 0, a, 1e-3) for a in amax)
    steps = tuple(range(0, every * len(amax), every))
    known: dict[str, object] = {"first_nonfinite": 210, "n_nonfinite": 3} | facts
    return ModuleRanges(path, "Linear", "output", steps, stats, **known)  # type: ignore[arg-type]


def seen(*ranges: ModuleRanges, at: OpSite = AT) -> Observations:
    born = dataclasses.replace(event(), site=at)
    return seen_ranges(*ranges, traces=(trace(born, step=at.step),))


GROWING = measured(*(2.0 ** (i / 8 + 12) for i in range(21)))


def test_a_steady_rise() -> None:
    rise = rise_to(seen(GROWING), AT)
    assert rise is not None
    assert rise.per_100 == pytest.approx(1.25)
    assert (rise.first, rise.last) == (110, 200)
    assert rise.low == pytest.approx(rise.high)


def test_the_interval_widens_with_scatter() -> None:
    values = (2.0 ** (0.1 * i + 12 + 0.1 * math.sin(5 * i)) for i in range(21))
    rise = rise_to(seen(measured(*values)), AT)
    assert rise is not None
    assert rise.low < 1.0 < rise.high


@pytest.mark.parametrize(
    "ranges",
    [
        measured(*[300.0] * 21),  # a spike out of the blue
        measured(*(300.0 * (2 + math.sin(5 * i)) for i in range(21))),  # scatter
        measured(*(2.0 ** (0.02 * i) for i in range(21))),  # too slow to have led there
        measured(*(2.0**i for i in range(8))),  # too few steps
        measured(*(2.0 ** (16 - 0.1 * i) for i in range(21))),  # it falls
        dataclasses.replace(GROWING, module_path="other"),
        dataclasses.replace(GROWING, first_nonfinite=None),
        dataclasses.replace(GROWING, first_nonfinite=100),  # it had left before
    ],
)
def test_no_rise(ranges: ModuleRanges) -> None:
    assert rise_to(seen(ranges), AT) is None


def test_the_survey_may_name_the_root_as_well() -> None:
    assert rise_to(seen(dataclasses.replace(GROWING, module_path="Critic.score")), AT)
    assert not rise_to(seen(dataclasses.replace(GROWING, module_path="underscore")), AT)


def test_the_finding_says_it() -> None:
    (finding,) = activation_overflow(seen(GROWING))
    assert (
        "rose by 1.25 binades per 100 steps (1.25 to 1.25) from step 110 to step 200"
        in finding.cause
    )
    assert RISE in [e.quantity for e in finding.evidence]
    (finding,) = activation_overflow(seen())
    assert RISE not in [e.quantity for e in finding.evidence]
