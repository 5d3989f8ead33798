"""The pictures of a page: what they are drawn from, and that they are the same each time."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from fp16doctor.report.explorer import explorer, sentence
from fp16doctor.report.html import render_html
from fp16doctor.report.pictures import (
    heat_map,
    pictures,
    range_map,
    stream,
    time_line,
    trajectory,
)
from fp16doctor.report.view import build_view
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.prescription import (
    Prescription,
    Recommendation,
    RecommendationStatus,
    Remedy,
    RemedyKind,
    Verdict,
    Verification,
)
from fp16doctor.schema.ranges import Extreme, ModuleRanges, RangeStats
from fp16doctor.schema.stream import StreamBlock, StreamSize

HandMade = dict[str, Callable[[], Diagnosis]]


def stats(**counts: int) -> RangeStats:
    """Statistics with so many elements in the binade of 2^k for ``e_k`` (``m`` for minus)."""
    exponents = tuple(
        sorted((int(k[1:].replace("m", "-")), n) for k, n in counts.items() if k[0] == "e")
    )
    low, high = exponents[0][0], exponents[-1][0]
    return RangeStats(
        numel=sum(n for _, n in exponents) + counts.get("nan", 0),
        n_zero=0,
        n_nan=counts.get("nan", 0),
        n_inf=0,
        amax=1.5 * 2.0**high,
        amin_nonzero=2.0**low,
        exponents=exponents,
    )


def ranges(path: str, role: str, *seen: RangeStats) -> ModuleRanges:
    return ModuleRanges(
        path, "Linear", role, tuple(range(len(seen))), seen, amax=max(s.amax for s in seen)
    )


@pytest.fixture
def diagnosis(hand_made: HandMade) -> Diagnosis:
    found = (
        ranges("a", "output", stats(em20=1, em3=900, e2=99), stats(em3=990, e17=10)),
        ranges("a", "grad_output", stats(em30=500, em10=500), stats(em30=1, em10=1)),
        ranges("b", "output[1]", stats(e0=10, nan=2), stats(e0=10)),
        ranges("b", "weight", stats(e0=10)),
    )
    return replace(hand_made["overflow"](), ranges=found)


def test_every_picture_is_drawn_alike_each_time(diagnosis: Diagnosis) -> None:
    first, second = pictures(diagnosis), pictures(diagnosis)
    assert [p.name for p in first] == ["range-map", "heat-map", "time-line", "trajectory"]
    assert first == second
    ids = [i for p in first for i in re.findall(r' id="([^"]+)"', p.svg)]
    own = [i for i in ids if not re.fullmatch(r"(figure|axes|patch|text|line2d|matplotlib)\S*", i)]
    assert not set(own) & set()  # ids of several pictures of one page do not collide:
    for p in first:
        others = {i for q in first if q is not p for i in re.findall(r'href="#(\w+)"', q.svg)}
        mine = set(re.findall(r'<(?:path|clipPath) id="(\w+)"', p.svg))
        assert not mine & others


def test_the_rows_of_the_range_map(diagnosis: Diagnosis) -> None:
    rows = range_map.rows_of(diagnosis.ranges)
    assert [r.path for r in rows] == ["a", "b"]
    forward, backward = rows[0].forward, rows[0].backward
    assert forward is not None
    assert backward is not None
    assert (forward.low, forward.p1, forward.p99, forward.high) == (-20, -3, 2, 17)
    assert (backward.low, backward.high) == (-30, -10)
    assert rows[1].forward is not None
    assert rows[1].forward.nonfinite == 2
    assert rows[1].backward is None


def test_the_table_of_the_range_map_holds_its_numbers(diagnosis: Diagnosis) -> None:
    picture = range_map.picture(diagnosis)
    assert picture is not None
    assert picture.table.rows[0] == ("a", "output", "2⁻²⁰", "2⁻³", "2²", "2¹⁷", "0", "–")
    assert picture.table.rows[2][-2:] == ("2", "–")


def test_headroom_by_step(diagnosis: Diagnosis) -> None:
    picture = heat_map.picture(diagnosis)
    assert picture is not None
    assert picture.title.startswith("Headroom in fp16")
    assert picture.table.rows[0][0] == "a"
    assert picture.table.rows[0][1].startswith("−1.6")  # log2(65504) − log2(1.5 · 2¹⁷)
    assert picture.table.rows[1] == ("b[1]", "inf or NaN", "0", "15.4\u00a0bits", "1")


def test_a_step_that_went_wrong_between_surveyed_ones_is_there(diagnosis: Diagnosis) -> None:
    first, second = diagnosis.ranges[0], diagnosis.ranges[2]
    hurt = replace(first, extremes=(Extreme(7, 0.0, nonfinite=True),), first_nonfinite=7)
    kept = replace(second, extremes=(Extreme(7, 2.0, nonfinite=False),), role="output")
    wrong = replace(diagnosis, ranges=(hurt, kept))
    heat, spans = heat_map.picture(wrong), range_map.picture(wrong)
    assert heat is not None
    assert spans is not None
    assert heat.table.rows[0][1:3] == ("inf or NaN", "7")
    assert heat.table.rows[1][3:] == ("15.0\u00a0bits", "7")
    assert spans.table.rows[0][-1] == "7"
    span = range_map.rows_of(wrong.ranges)[0].forward
    assert span is not None
    assert span.first_bad == 7


def with_stream(diagnosis: Diagnosis, place: int, amax: float) -> Diagnosis:
    blocks = tuple(
        StreamBlock(f"body.{i}", StreamSize(2.0**i, amax * 2.0**i), StreamSize(1.0, 3.0))
        for i in range(3)
    )
    cures = list(diagnosis.prescriptions)
    proof = replace(cures[place].verification, stream=blocks)
    cures[place] = replace(cures[place], verification=proof)
    return replace(diagnosis, prescriptions=tuple(cures))


def test_the_residual_stream_of_a_cure(diagnosis: Diagnosis) -> None:
    assert stream.picture(diagnosis) is None
    picture = stream.picture(with_stream(diagnosis, 1, 20000.0))
    assert picture is not None
    assert picture.table.rows[2] == ("3", "body.2", "4", "1", "8e4", "3")
    assert picture.table.head[2:] == (
        "std, as run", "std, under the cure", "amax, as run", "amax, under the cure"
    )  # fmt: skip
    assert "fp16 max" in picture.svg
    assert "start the loss scale at 1024" in picture.caption
    low = stream.picture(with_stream(diagnosis, 1, 4.0))
    assert low is not None
    assert "fp16 max" not in low.svg


def test_the_stream_shown_is_that_of_the_recommended_cure(diagnosis: Diagnosis) -> None:
    both = with_stream(with_stream(diagnosis, 1, 4.0), 0, 4.0)
    picture = stream.picture(both)
    assert picture is not None
    assert picture.caption.endswith("train in bf16 instead of fp16.")
    assert 'id="residual-stream"' in render_html(both)


def test_losses_that_are_all_nan_have_no_invented_scale(diagnosis: Diagnosis) -> None:
    picture = time_line.picture(diagnosis)
    assert picture is not None
    assert "no step has a finite loss" in picture.svg
    known = tuple(replace(s, loss=1.5 + s.step) for s in diagnosis.steps)
    other = time_line.picture(replace(diagnosis, steps=known))
    assert other is not None
    assert "no step has a finite loss" not in other.svg


def test_headroom_is_that_of_the_format_that_ran(diagnosis: Diagnosis) -> None:
    run = replace(diagnosis.run, ops_by_dtype=(("bfloat16", 3), ("float32", 1)))
    assert (heat_map.format_of(replace(diagnosis, run=run)) or diagnosis.formats[0]).name == "bf16"


def test_the_time_line_keeps_every_event(hand_made: HandMade) -> None:
    steps = hand_made["overflow"]().steps
    many = tuple(
        replace(steps[0], step=i, loss=1.0 if i != 3333 else math.inf, skipped=i == 7777)
        for i in range(9000)
    )
    kept = {s.step for s in time_line.thinned(many)}
    assert {0, 3333, 7777} <= kept
    assert len(kept) < 2100


def test_a_trajectory_needs_two_lines_and_two_steps(diagnosis: Diagnosis) -> None:
    assert trajectory.picture(diagnosis) is not None
    assert trajectory.picture(replace(diagnosis, trajectory={})) is None
    one = {"steps": (0.0,), "fp32": (1.0,), "bf16": (1.0,)}
    assert trajectory.picture(replace(diagnosis, trajectory=one)) is None


def test_a_trajectory_names_the_cures_and_the_recommended_one_first(diagnosis: Diagnosis) -> None:
    def cure(title: str, losses: tuple[float, ...], value: object = None) -> Prescription:
        remedy = Remedy(RemedyKind.FP32_KEEP, title, value=value)
        return Prescription(remedy, (0,), Verification(Verdict.VERIFIED, losses=losses))

    cures = (
        cure("train in fp32", (2.5, 2.25, 2.0), "fp32"),
        cure("keep `a` in fp32", (2.5, 2.2, 1.9)),
        cure("not followed", ()),
    )
    found = trajectory.lines_of(
        replace(
            diagnosis,
            prescriptions=cures,
            recommendation=Recommendation(RecommendationStatus.PRESCRIBED, "…", (1,)),
            trajectory={**diagnosis.trajectory, "fp32 for module:a": (2.5, 2.2, 1.9)},
        )
    )
    assert list(found) == ["as run", "recommended: keep a in fp32", "fp32", "bf16"]
    assert found["recommended: keep a in fp32"] == (2.5, 2.2, 1.9)


def test_nothing_is_drawn_of_nothing(hand_made: HandMade) -> None:
    bare = replace(hand_made["raised"](), ranges=(), steps=(), trajectory={})
    assert pictures(bare) == ()
    assert explorer(bare) is None
    assert "<h2>Pictures</h2>" not in render_html(bare)


def test_mathematics_in_a_name_is_text(diagnosis: Diagnosis) -> None:
    named = tuple(replace(r, module_path=r"$\frac{1}{0}$ _x^") for r in diagnosis.ranges)
    page = render_html(replace(diagnosis, ranges=named))
    assert r"$\frac{1}{0}$ _x^" in page
    assert "could not be drawn" not in page


def test_the_page_is_whole_without_matplotlib(
    diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = render_html(diagnosis)
    assert "the pictures could not be drawn: ModuleNotFoundError" in page
    assert 'id="loss-scale-explorer"' in page
    assert "<h2>Run</h2>" in page


def test_the_terminal_draws_nothing(diagnosis: Diagnosis) -> None:
    assert build_view(diagnosis).pictures == ()


def test_the_explorer_says_the_shares_of_the_diagnosis(diagnosis: Diagnosis) -> None:
    view, scales = explorer(diagnosis), diagnosis.gradient_scales
    assert view is not None
    assert scales is not None
    assert view.power == 1  # the recommended scale
    assert view.said == sentence(scales.shares[1], "fp16")
    assert "50" in view.said
    assert view.marks == "window found by trial: 1 to 4; recommended 2"
    low, high = view.window
    assert view.bars[0].x < low < view.bars[1].x < view.bars[2].x < high


def test_a_page_of_five_hundred_modules_over_two_hundred_steps_is_under_two_megabytes(
    diagnosis: Diagnosis,
) -> None:
    every = tuple(stats(**{f"em{k}": 10 for k in range(1, 25)}) for _ in range(200))
    many = tuple(
        ranges(f"decoder.layers.{i}.self_attention.projection", role, *every)
        for i in range(500)
        for role in ("output", "grad_output")
    )
    steps = tuple(replace(diagnosis.steps[0], step=i) for i in range(200))
    page = render_html(replace(diagnosis, ranges=many, steps=steps))
    assert len(page.encode()) < 2_000_000
