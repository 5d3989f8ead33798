"""The text on a terminal: one screen, the text to paste once, columns that hold at every width."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from fp16doctor.report.html import render_html
from fp16doctor.report.layout import Lines, aligned, cells, wrapped
from fp16doctor.report.terminal import render_terminal
from fp16doctor.report.view import build_view
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.prescription import Prescription, Verdict

HandMade = dict[str, Callable[[], Diagnosis]]
SCREEN = 50  # lines
NUMBERS = {
    "non-finite elements": 0.0,
    "gradient error": 0.00137,
    "gradient lost": 0.0,
    "descent kept": 0.999,
    "loss after 10 steps": 5.0188,
}


def shown(diagnosis: Diagnosis, *, width: int = 100, verbose: bool = False) -> str:
    outputs = ("fp16doctor-train.html", "fp16doctor-train.json")
    return render_terminal(diagnosis, color=False, width=width, outputs=outputs, verbose=verbose)


def cure(base: Prescription, title: str, verdict: Verdict, reason: str = "") -> Prescription:
    proved = replace(
        base.verification,
        verdict=verdict,
        reason=reason,
        before={"non-finite elements": 212000.0},
        after=NUMBERS if verdict is Verdict.VERIFIED else {},
    )
    remedy = replace(base.remedy, title=title, change=f"code_of({title!r})\n" * 3, forms={})
    return replace(base, remedy=remedy, verification=proved)


@pytest.fixture
def treated(hand_made: HandMade) -> Diagnosis:
    """One finding, its cures: two that helped, one that did not, one that was not tried."""
    found = hand_made["overflow"]()
    base = found.prescriptions[0]
    cures = (
        cure(base, "keep `blocks.2.ffn.wo` in fp32", Verdict.VERIFIED),
        cure(base, "train in fp32", Verdict.VERIFIED),
        cure(base, "a loss scale from 1 to 2^24", Verdict.REFUTED, "none helps"),
        cure(base, "edit the script", Verdict.NOT_VERIFIED, "it needs an edit"),
    )
    chosen = replace(found.recommendation, prescriptions=(0,))
    return replace(found, findings=found.findings[:1], prescriptions=cures, recommendation=chosen)


def test_one_finding_fits_a_screen(treated: Diagnosis) -> None:
    assert len(shown(treated).splitlines()) <= SCREEN


def test_the_text_to_paste_stands_once_right_under_do(treated: Diagnosis) -> None:
    text = shown(treated)
    labels = re.findall(r"^([a-z]+) ", text, flags=re.M)[:5]
    assert labels == ["verdict", "place", "do", "paste", "proof"]
    assert text.count("code_of('keep `blocks.2.ffn.wo` in fp32')") == 3  # its three lines
    assert "code_of('train in fp32')" not in text
    assert "code_of('train in fp32')" in shown(treated, verbose=True)


def test_the_short_form_is_pasted_where_there_is_one(treated: Diagnosis) -> None:
    first, *others = treated.prescriptions
    forms = {"fp16doctor": "import fp16doctor\n\nfp16doctor.keep_fp32(model, ['a'])"}
    short = replace(first, remedy=replace(first.remedy, forms=forms))
    text = shown(replace(treated, prescriptions=(short, *others)))
    pasted = "paste    import fp16doctor\n         fp16doctor.keep_fp32(model, ['a'])\n"
    assert pasted in text


def test_a_long_text_to_paste_is_pointed_to_and_never_cut(treated: Diagnosis) -> None:
    first, *others = treated.prescriptions
    change = "\n".join(f"line_{i}" for i in range(30))
    long = replace(treated, prescriptions=(
        replace(first, remedy=replace(first.remedy, change=change)), *others,
    ))  # fmt: skip
    assert "line_0" not in shown(long)
    assert "paste    30 lines: on the page, and with -v" in shown(long)
    assert "line_29" in shown(long, verbose=True)


def test_an_edit_that_was_not_tried_is_pasted_where_the_answer_names_it(
    treated: Diagnosis,
) -> None:
    sentence = "edit the script"
    told = replace(treated.findings[0], advice=sentence)
    nothing = replace(treated.recommendation, sentence=sentence, prescriptions=())
    text = shown(replace(treated, findings=(told,), recommendation=nothing))
    assert "paste    code_of('edit the script')" in text


def test_joint_cures_are_pasted_each_under_its_name(treated: Diagnosis) -> None:
    both = replace(treated.recommendation, prescriptions=(0, 1))
    text = shown(replace(treated, recommendation=both))
    assert "# keep `blocks.2.ffn.wo` in fp32\n" in text
    assert "# train in fp32\n" in text


def test_cures_are_a_table_under_the_numbers_of_the_run(treated: Diagnosis) -> None:
    table = shown(treated).partition("cures tried")[2].splitlines()
    assert table[0].split() == ["non-finite", "loss"]
    assert table[1].split() == ["as", "run", "2.12e5", "–"]
    assert table[2].split()[:3] == ["verified", "0", "5.0188"]
    assert table[2].endswith("recommended: as above")
    assert re.fullmatch(r"refuted +a loss scale from 1 to 2\^24: none helps", table[4])
    assert re.fullmatch(r"not verified +edit the script: it needs an edit", table[5])


def test_a_cure_that_nobody_tried_is_advised_not_recommended(treated: Diagnosis) -> None:
    (edit,) = treated.prescriptions[-1:]
    chosen = replace(treated.recommendation, prescriptions=(0,))
    text = shown(replace(treated, prescriptions=(edit, edit), recommendation=chosen))
    assert re.search(r"^not verified +advised: as above$", text, flags=re.M)
    assert "cures tried" not in text
    assert "recommended" not in text
    alone = shown(replace(treated, prescriptions=(edit,), recommendation=chosen))
    assert "as above" not in alone  # a table of one row that says no more than the answer


def test_the_legend_explains_the_columns_that_are_there(treated: Diagnosis) -> None:
    first, *others = treated.prescriptions
    off = {**first.verification.after, "gradient error": 0.23, "descent kept": 0.9}
    proof = replace(first.verification, after=off)
    judged = replace(treated, prescriptions=(replace(first, verification=proof), *others))
    text = " ".join(shown(judged).split())
    assert (
        "gradient error: distance from fp32's over its size, 0 is equal; descent: how far a step "
        "lowers the loss, 1 is as far as fp32's; loss: after 10 steps"
    ) in text
    assert "lost:" not in text  # nothing was lost anywhere: no column


def test_numbers_that_are_as_good_as_they_get_are_no_column(treated: Diagnosis) -> None:
    assert "gradient error" not in shown(treated)
    cures = build_view(treated).cures
    assert {"gradient error", "descent kept"} <= set(cures.left_out)
    assert '<p class="soft">gradient error: – → 0.00137</p>' in render_html(treated)


def test_updates_are_a_column_where_a_cure_is_judged_by_them(treated: Diagnosis) -> None:
    before = {"realised fraction": 0.0, "largest update error": 1.0}
    after = {"realised fraction": 1.0, "largest update error": 0.0021}
    first, *others = treated.prescriptions
    proof = replace(first.verification, before=before, after=after)
    judged = replace(treated, prescriptions=(replace(first, verification=proof), *others))
    table = shown(judged).partition("cures tried")[2].splitlines()
    assert "update made  update error" in table[0]
    assert re.search(r" 0 +1 ", table[1])
    assert re.search(r" 1 +0.0021 ", table[2])
    text = " ".join(shown(judged).split())
    assert "update made: share of the one meant, 1 is all of it; update error: distance" in text
    assert {"realised fraction", "largest update error"} <= set(build_view(judged).cures.columns)


def test_where_the_rest_stands_is_said(treated: Diagnosis) -> None:
    again = "on the page, or: fp16doctor report fp16doctor-train.json -v"
    assert again in shown(treated)
    assert again not in shown(treated, verbose=True)


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_lines_stay_within_the_width(treated: Diagnosis, width: int) -> None:
    lines = shown(treated, width=width).splitlines()
    code = [line for line in lines if "code_of" in line or line.startswith("report:")]
    assert all(cells(line) <= width for line in lines if line not in code)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("46.9\u00a0% of it", ["46.9\u00a0%", "of it"]),  # a number keeps its unit
        ("a well-known-word", ["a", "well-known-word"]),  # never at a hyphen
        ("far/too/long/a/path it", ["far/too/long/a/path", "it"]),  # nor inside a path
        ("模型模 层层", ["模型模", "层层"]),  # two columns each
        ("", []),
    ],
)
def test_lines_break_at_spaces_alone(text: str, lines: list[str]) -> None:
    assert wrapped(text, 8) == lines


def test_columns_count_what_a_terminal_shows() -> None:
    assert list(aligned([("模型", "x"), ("a", "y")])) == ["模型  x", "a     y"]


def test_markup_of_rich_in_a_name_is_text() -> None:
    page = Lines(80, color=True)
    page.put("[bold red]x[/] :smile:", indent=9, label="place")
    assert "[bold red]x[/] :smile:" in page.text()
