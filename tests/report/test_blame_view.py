"""The error budget: bars and what they mean, and silence where it tells of no finding."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from fp16doctor.report.blame_view import ALONE, JOINT, blame_view
from fp16doctor.report.html import render_html
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Evidence, Fault
from fp16doctor.schema.location import Phase
from fp16doctor.schema.prescription import RecommendationStatus

HandMade = dict[str, Callable[[], Diagnosis]]
NB = "\u00a0"


def with_finding(diagnosis: Diagnosis, **changes: object) -> Diagnosis:
    finding = replace(diagnosis.findings[0], **changes)  # type: ignore[arg-type]
    return replace(diagnosis, findings=(finding,))


def test_each_share_is_a_bar_and_words(hand_made: HandMade) -> None:
    rows = blame_view(hand_made["healthy"]()).rows
    assert [(r.share.words, r.share.percent) for r in rows] == [
        (f"71{NB}%", 71.0), (f"28{NB}%", 28.0), (f"−0.4{NB}%", 0.0)
    ]  # fmt: skip
    assert (rows[1].joint.words, rows[1].joint.percent) == (f"93{NB}%", 93.0)
    assert (rows[2].joint.words, rows[2].joint.percent) == ("–", None)


def test_a_share_beyond_all_of_it_fills_its_bar(hand_made: HandMade) -> None:
    healthy = hand_made["healthy"]()
    over = replace(healthy.blame[0], share=1.4, cumulative=math.nan)
    (row,) = blame_view(replace(healthy, blame=(over,))).rows
    assert (row.share.percent, row.share.words) == (100.0, f"140{NB}%")
    assert row.joint.percent is None


def test_the_columns_are_explained_and_the_others_stay_in_the_json(hand_made: HandMade) -> None:
    healthy = blame_view(hand_made["healthy"]())
    assert [name for name, _ in healthy.legend] == [ALONE, JOINT]
    assert "need not add up to 100" in healthy.legend[0][1]
    assert "fp32" in blame_view(hand_made["overflow"]()).legend[0][1]
    page = render_html(hand_made["healthy"]())
    for word in ("adjoint", '<th scope="col">alone</th>'):
        assert word not in page
    assert page.count('<rect class="bar"') >= 5


def test_it_is_shown_where_it_is_about_the_finding(overflow: Diagnosis) -> None:
    assert blame_view(overflow).rows
    site = overflow.findings[0].site
    assert site is not None
    again = with_finding(overflow, site=replace(site, step=4), repeats=(site,))
    assert blame_view(again).rows
    lost = Evidence("elements of `a` that became zero", 1.0, "recorded", count=1, total=2)
    assert blame_view(with_finding(overflow, fault=Fault.MISUSE, evidence=(lost,))).rows


def test_it_is_left_out_where_it_says_nothing_about_the_finding(overflow: Diagnosis) -> None:
    site = overflow.findings[0].site
    assert site is not None
    behind = replace(site, phase=Phase.OPTIMIZER)
    logic = replace(
        overflow,
        recommendation=replace(overflow.recommendation, status=RecommendationStatus.NOT_PRECISION),
    )
    for other in (
        with_finding(overflow, fault=Fault.MISUSE),
        with_finding(overflow, site=None),
        with_finding(overflow, site=behind),
        with_finding(overflow, site=replace(site, step=4), repeats=()),
        logic,
    ):
        view = blame_view(other)
        assert (view.line, view.note, view.rows, view.table.rows) == ("", "", (), ())
        assert "<h2>Error budget</h2>" not in render_html(other)
