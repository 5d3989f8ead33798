"""What the top of a page says of each kind of run, and what it gives to paste."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from fp16doctor.report.html import render_html
from fp16doctor.report.view import build_view
from fp16doctor.report.view_model import AnswerView
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Evidence, Fault
from fp16doctor.schema.prescription import Recommendation, RecommendationStatus, Verdict
from fp16doctor.schema.recording import OutcomeKind, StepInfo
from fp16doctor.schema.start import ScanStart

HandMade = dict[str, Callable[[], Diagnosis]]
NB = "\u00a0"


def top(diagnosis: Diagnosis) -> AnswerView:
    return build_view(diagnosis).answer


def head(diagnosis: Diagnosis) -> str:
    return render_html(diagnosis).partition("<header>")[2].partition("</header>")[0]


def with_change(diagnosis: Diagnosis, change: str) -> Diagnosis:
    cure = diagnosis.prescriptions[0]
    changed = replace(cure, remedy=replace(cure.remedy, change=change))
    return replace(diagnosis, prescriptions=(changed, *diagnosis.prescriptions[1:]))


def test_the_recommended_cure_stands_there_to_be_pasted(overflow: Diagnosis) -> None:
    (paste,) = top(overflow).pastes
    assert paste.change == overflow.prescriptions[0].remedy.change
    assert (paste.kind, paste.unproved, paste.long) == ("code", "", False)
    assert '<div><pre class="paste"><span class="same">with torch.autocast(' in head(overflow)


@pytest.mark.parametrize(
    ("file", "folder", "expected"),
    [
        ("/home/u/t.py", "/home/u", "t.py"),
        ("/home/u/ex/mine/t.py", "/home/u", "ex/mine/t.py"),
        ("/home/v/t.py", "/home/u", "t.py"),  # not below: named as everywhere else
    ],
)
def test_a_diff_names_its_file_from_where_the_script_was_started(
    overflow: Diagnosis, file: str, folder: str, expected: str
) -> None:
    body = "@@ -1 +1 @@\n-x = 1\n+x = 2"
    cure = with_change(overflow, f"--- a/t.py\n+++ b/t.py\n{body}")
    (paste,) = top(replace(cure, start=ScanStart(folder, file=file))).pastes
    assert paste.change == f"--- a/{expected}\n+++ b/{expected}\n{body}"


def test_the_lines_of_a_diff_are_marked(overflow: Diagnosis) -> None:
    text = "--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n y = 3"
    marks = re.findall(r'<span class="(same|added|gone)">(.*)\n', head(with_change(overflow, text)))
    assert [m for m, _ in marks] == ["same"] * 3 + ["gone", "added", "same"]
    assert [line for _, line in marks] == text.split("\n")
    code = re.findall(r'<span class="(\w+)">- x', head(with_change(overflow, "- x")))
    assert code == ["same"]  # no diff: a minus is a minus


def test_a_long_text_is_shown_in_a_box_that_the_keyboard_reaches(overflow: Diagnosis) -> None:
    long = with_change(overflow, "\n".join(f"x{i} = {i}" for i in range(20)))
    assert top(long).pastes[0].long
    assert '<div class="box" tabindex="0" role="region" aria-label="code to paste 1">' in head(long)
    assert not top(with_change(overflow, "x = 1\n" * 19)).pastes[0].long


def test_a_diff_is_called_one(overflow: Diagnosis) -> None:
    diff = with_change(overflow, "--- a/train.py\n+++ b/train.py\n@@ -1,1 +1,1 @@\n-a\n+b\n")
    assert top(diff).pastes[0].kind == "diff of the script, for patch -p1"
    words = with_change(overflow, "# train.py:3: create it in torch.float32\n\n  # and cast a copy")
    assert top(words).pastes[0].kind == "in words"


def test_every_part_of_a_joint_cure_is_there_with_its_title(overflow: Diagnosis) -> None:
    both = replace(
        with_change(overflow, "a"),
        recommendation=replace(overflow.recommendation, prescriptions=(0, 0)),
    )
    assert len(top(both).pastes) == 2
    assert head(both).count("code · train in bf16 instead of fp16") == 2


def test_an_untried_cure_that_the_answer_names_is_marked(overflow: Diagnosis) -> None:
    """No time was left to try: what was found may be pasted, and nothing is called proved."""
    cures = tuple(
        replace(
            p,
            verification=replace(
                p.verification, verdict=Verdict.NOT_VERIFIED, steps=(), reason="no step was kept"
            ),
        )
        for p in overflow.prescriptions
    )
    finding = replace(
        overflow.findings[0], advice="train in bf16 instead of fp16, or clamp the output"
    )
    sentence = f"{finding.advice}; not verified by a replay"
    none = Recommendation(RecommendationStatus.NONE_FOUND, sentence)
    said = top(replace(overflow, prescriptions=cures, findings=(finding,), recommendation=none))
    assert said.do == f"{finding.advice} (not verified)"
    assert [(p.title, p.unproved) for p in said.pastes] == [
        ("train in bf16 instead of fp16", "not verified")
    ]
    assert "not seen: whether a cure helps (no step was kept)" in said.proof


def test_without_a_text_to_paste_the_line_is_left_out(hand_made: HandMade) -> None:
    for name in ("logic-nan", "raised", "healthy", "never-trained", "unexplained"):
        diagnosis = hand_made[name]()
        assert top(diagnosis).pastes == ()
        assert "<dt>paste</dt>" not in head(diagnosis)
        assert top(diagnosis).do


def test_advice_that_nobody_tried_is_a_thing_not_seen(hand_made: HandMade) -> None:
    assert "whether the advice helps (no cure was tried)" in top(hand_made["raised"]()).proof
    assert "helps" not in top(hand_made["overflow"]()).proof
    assert "helps" not in top(hand_made["healthy-with-warm-up"]()).proof


def silent(healthy: Diagnosis, overflow: Diagnosis, fault: Fault, *evidence: Evidence) -> Diagnosis:
    finding = replace(overflow.findings[0], fault=fault, what="it is lost", evidence=evidence)
    return replace(healthy, findings=(finding,))


def test_silent_underflow_counts_what_became_zero(healthy: Diagnosis, overflow: Diagnosis) -> None:
    lost = Evidence(
        "elements of `a.weight` that became zero", 9.0, "replayed:fp64", count=9, total=12
    )
    details = top(silent(healthy, overflow, Fault.UNDERFLOW, lost)).details
    assert (
        f"9 of 12 (75{NB}%) gradient elements of `a.weight` became zero, "
        "zeros that belong there excluded"
    ) in details
    assert details.endswith("the loss went from 2.3141 to 0.8641")


def test_lost_updates_say_that_weights_and_loss_stand(
    healthy: Diagnosis, overflow: Diagnosis
) -> None:
    flat = tuple(replace(s, loss=2.3) for s in healthy.steps)
    of_one = Evidence("unchanged elements over 9 steps", 2.0, "recorded", format="bf16", count=2,
                      total=9)  # fmt: skip
    of_all = replace(of_one, quantity="unchanged elements of 5 parameters over 9 steps", count=9)
    lost = silent(healthy, overflow, Fault.LOST_UPDATE, of_one, of_all)
    finding = replace(lost.findings[0], reaches=("parameters",))
    said = top(replace(lost, steps=flat, findings=(finding,)))
    assert said.verdict == (
        "the bf16 weights do not change in 9 replayed steps and the loss does not fall "
        "(2.3 → 2.3 over 30 steps): it is lost"
    )
    assert said.details == ""
    some = replace(finding, evidence=(of_one,))
    verdict = top(replace(lost, steps=flat, findings=(some,))).verdict
    assert verdict.startswith(f"2 of 9 (22.2{NB}%) elements of the bf16 weights do not change in")


def test_a_silent_fault_says_what_is_wrong(healthy: Diagnosis, overflow: Diagnosis) -> None:
    off = Evidence("gradients error", 1.0, "replayed:fp64")
    finding = replace(silent(healthy, overflow, Fault.OVERFLOW, off).findings[0], reaches=())
    said = top(replace(healthy, findings=(finding,)))
    assert said.verdict == (
        f"the gradients are finite and wrong (100{NB}% off the fp64 replay): it is lost"
    )
    assert said.details == "the loss stays finite, it went from 2.3141 to 0.8641"


def test_a_healthy_run_names_its_nearest_limit(healthy: Diagnosis, overflow: Diagnosis) -> None:
    steps = (0, 5, 9)
    stats = tuple(
        replace(overflow.ranges[0].stats[0], amax=amax) for amax in (65504.0, 1024.0, 4096.0)
    )
    seen = replace(overflow.ranges[0], steps=steps, stats=stats, amax=60000.0, amax_step=None)
    small = replace(seen, module_path="head", stats=tuple(replace(s, amax=1.0) for s in stats))
    weight = replace(seen, role="weight", stats=tuple(replace(s, amax=6e4) for s in stats))
    first = (replace(healthy.steps[0], skipped=True), *healthy.steps[1:])
    place = top(replace(healthy, steps=first, ranges=(small, weight, seen))).place
    assert (
        "nearest to a limit: the output of `blocks.2.ffn.wo` reaches 4096 at step 9, the fp16 "
        f"maximum is 65504 (headroom 4.0{NB}bits; from step 5 to step 9: 6.0{NB}bits to "
        f"4.0{NB}bits)"
    ) in place
    assert "headroom" in head(replace(healthy, ranges=(small,)))
    bare = replace(seen, module_path="0")
    assert "the output of `0` (Linear) reaches" in top(replace(healthy, ranges=(bare,))).place


def test_a_steady_headroom_is_called_so(healthy: Diagnosis, overflow: Diagnosis) -> None:
    stats = (replace(overflow.ranges[0].stats[0], amax=1000.0),) * 2
    seen = replace(overflow.ranges[0], steps=(0, 9), stats=stats, amax=1000.0)
    assert ", steady from step 0 to step 9" in top(replace(healthy, ranges=(seen,))).place


def test_skips_of_a_settling_scale_are_explained(hand_made: HandMade) -> None:
    details = top(hand_made["healthy-with-warm-up"]()).details
    assert (
        "2 of 30 optimizer steps were skipped (steps 0 and 1) while the loss scale settled from "
        "65536 to 16384: it starts high and is halved until the gradients fit"
    ) in details


def test_skips_up_to_the_end_are_not_explained_away(hand_made: HandMade) -> None:
    base = hand_made["healthy-with-warm-up"]()
    late = StepInfo(29, 2.3, 8192.0, True, True, 700, 40, 4096.0)
    details = top(replace(base, steps=(*base.steps[:-1], late), findings=())).details
    assert "settled" not in details
    assert "3 of 30 optimizer steps were skipped" in details
    assert "the loss scale fell from 65536 to 4096" in details


def test_skips_before_a_nan_that_nothing_explains_are_not_explained_away(
    hand_made: HandMade,
) -> None:
    base = hand_made["healthy-with-warm-up"]()
    steps = (*base.steps[:-1], replace(base.steps[-1], loss=math.nan))
    said = top(replace(base, steps=steps, findings=()))
    assert "no check names a cause" in said.verdict
    assert "settled" not in said.details


def test_a_nan_loss_gets_no_nearest_limit(hand_made: HandMade, overflow: Diagnosis) -> None:
    unexplained = replace(hand_made["unexplained"](), ranges=overflow.ranges)
    assert math.isnan(unexplained.steps[-1].loss or 0.0)
    assert "nearest" not in top(unexplained).place


def test_what_outlives_a_skipped_step_is_told(overflow: Diagnosis) -> None:
    top_one = replace(overflow.findings[0], reaches=("loss", "gradients", "buffers"))
    said = top(replace(overflow, findings=(top_one,)))
    assert "0 of 30 optimizer steps were taken and inf or NaN is left in the buffers: `" in (
        said.verdict
    )
    lost = replace(top_one, reaches=("loss", "parameters", "buffers"))
    assert "buffers" not in top(replace(overflow, findings=(lost,))).verdict


def test_an_exit_is_no_exception(hand_made: HandMade) -> None:
    run = hand_made["raised-without-finding"]().run
    left = replace(run, outcome=replace(run.outcome, kind=OutcomeKind.EXITED, status=2))
    assert top(replace(hand_made["healthy"](), run=left)).place == "where the script ended"
