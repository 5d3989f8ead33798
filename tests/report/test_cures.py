"""The table of cures: a row each, what its numbers mean, and no cure told twice."""

from __future__ import annotations

import re
from dataclasses import replace

from fp16doctor.report.cure_table import cure_table
from fp16doctor.report.folded import folded_advice
from fp16doctor.report.glossary import QUANTITIES, SHORT, meanings, short_head
from fp16doctor.report.html import render_html
from fp16doctor.report.view import build_view
from fp16doctor.report.view_model import RemedyView
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.prescription import (
    Prescription,
    RecommendationStatus,
    Remedy,
    RemedyKind,
    Verdict,
    Verification,
)


def remedy(*comparison: tuple[str, str, str]) -> RemedyView:
    return RemedyView("t", "", (), "verified", "", "", "", comparison, recommended=False)


def test_each_quantity_is_a_column_of_before_and_after() -> None:
    first = remedy(("gradient lost", "1", "0.1"), ("non-finite elements", "7", "0"))
    table = cure_table([first, remedy(("non-finite elements", "7", "7"))])
    assert table.columns == ("non-finite elements", "gradient lost")
    assert table.rows == (("7 → 0", "1 → 0.1"), ("7 → 7", "–"))


def test_a_number_that_no_run_has_before_stands_alone() -> None:
    table = cure_table([remedy(("descent kept", "–", "1")), remedy(("descent kept", "–", "0.9"))])
    assert table.rows == (("1",), ("0.9",))


def test_ops_are_counted_where_the_elements_tell_nothing() -> None:
    elements, ops = ("non-finite elements", "0", "0"), ("non-finite ops", "12", "0")
    assert cure_table([remedy(elements, ops)]).columns == ("non-finite ops",)
    told = ("non-finite elements", "9", "0")
    assert cure_table([remedy(told, ops)]).columns == ("non-finite elements",)
    none = ("non-finite ops", "0", "0")
    assert cure_table([remedy(elements, none)]).columns == ("non-finite elements",)


def test_losses_after_different_numbers_of_steps_share_a_column() -> None:
    ten, eight = (("loss after 10 steps", "3", "2"),), (("loss after 8 steps", "–", "4"),)
    assert cure_table([remedy(*ten), remedy(*ten)]).columns == ("loss after 10 steps",)
    table = cure_table([remedy(*ten), remedy(*eight)])
    assert table.columns == ("loss at the end",)
    assert table.rows == (("3 → 2 (10 steps)",), ("– → 4 (8 steps)",))


def test_every_known_quantity_says_which_way_is_good() -> None:
    words = ("is better", "is wanted", "is worse", "factor")
    assert all(any(w in text for w in words) for text in QUANTITIES.values())
    known = meanings(["loss after 3 steps", "?"], dash=True)
    assert [name for name, _ in known] == ["loss after 3 steps", "–"]
    assert len(meanings(["loss scale"], dash=False)) == 1
    assert meanings(["?"], dash=True) == ()


def test_every_known_quantity_has_a_head_for_narrow_columns() -> None:
    assert set(SHORT) == set(QUANTITIES)
    heads = [head for head, _ in map(short_head, SHORT)]
    assert len(set(heads)) == len(heads)
    assert short_head("loss after 3 steps") == ("loss", "after 3 steps")
    assert short_head("?") == ("?", "")


def test_what_is_recommended_and_not_verified_is_called_advised(overflow: Diagnosis) -> None:
    first = overflow.prescriptions[0]
    untried = replace(first, verification=Verification(Verdict.NOT_VERIFIED, "no step was kept"))
    view = build_view(replace(overflow, prescriptions=(untried, *overflow.prescriptions[1:])))
    assert [r.standing for r in view.remedies] == ["advised", ""]
    assert [r.standing for r in build_view(overflow).remedies] == ["recommended", ""]


def test_the_page_has_one_row_a_cure_and_no_blank_one(overflow: Diagnosis) -> None:
    table = render_html(overflow).partition('<table class="cures">')[2].partition("</table>")[0]
    assert table.count("<tbody") == table.count('<th scope="row">') == len(overflow.prescriptions)
    assert "<td></td>" not in table
    assert re.findall(r'<th scope="col">([^<]+)</th>', table)[:2] == ["cure", "verdict"]


def test_what_each_cure_treats_is_said_once_where_it_is_the_same(overflow: Diagnosis) -> None:
    page = render_html(overflow)
    assert page.count("each for FD101 activation-overflow") == 1
    first, *others = overflow.prescriptions
    apart = render_html(replace(overflow, prescriptions=(replace(first, treats=()), *others)))
    assert '<th scope="col">treats</th>' in apart
    assert "each for" not in apart


def test_a_card_names_the_recommended_cure_and_links_to_it(overflow: Diagnosis) -> None:
    page = render_html(overflow)
    assert '<a href="#cure-1">train in bf16 instead of fp16</a> (recommended): verified' in page
    assert '<tbody id="cure-1">' in page
    assert "1 other cure under Prescriptions: 1 refuted" in page


def advised(diagnosis: Diagnosis, **changes: object) -> Diagnosis:
    """The sample with its finding's own advice as an untried cure."""
    finding = diagnosis.findings[0]
    proof = Verification(Verdict.NOT_VERIFIED, "it needs an edit, which was not tried")
    edit = Prescription(Remedy(RemedyKind.CODE_FIX, finding.advice, "x = y"), (0,), proof)
    edit = replace(edit, **changes)  # type: ignore[arg-type]
    return replace(
        diagnosis,
        prescriptions=(edit, *diagnosis.prescriptions),
        recommendation=replace(diagnosis.recommendation, prescriptions=(1,)),
    )


def test_untried_advice_is_told_beside_the_cure_that_was_tried(overflow: Diagnosis) -> None:
    both = advised(overflow)
    assert folded_advice(both) == {0: 1}
    view = build_view(both)
    assert [r.verdict for r in view.remedies] == ["verified", "refuted"]
    assert [r.number for r in view.remedies] == [1, 2]
    assert [r.verdict for r in view.findings[0].remedies] == ["verified", "refuted"]
    (form,) = view.remedies[0].advised
    assert (form.name, form.change) == (overflow.findings[0].advice, "x = y")
    page = render_html(both)
    assert "the finding's advice in words, not tried as such" in page
    assert "not verified" not in page.partition("<h2>Findings</h2>")[0]


def test_advice_stays_a_cure_where_nothing_else_was_verified(overflow: Diagnosis) -> None:
    other = advised(overflow, treats=(0, 1))
    assert folded_advice(other) == {}
    recommended = replace(
        other.recommendation, status=RecommendationStatus.NONE_FOUND, prescriptions=(0,)
    )
    assert folded_advice(replace(advised(overflow), recommendation=recommended)) == {}
    tried = Verification(Verdict.NOT_VERIFIED, "it could not be told", steps=(0,))
    assert folded_advice(advised(overflow, verification=tried)) == {}
