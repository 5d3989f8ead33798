"""The four lines on top say what happened, whatever happened."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from fp16doctor.report.view import build_view
from fp16doctor.report.view_model import AnswerView
from fp16doctor.schema.diagnosis import Diagnosis, FidelitySummary
from fp16doctor.schema.finding import Evidence, Fault, Severity
from fp16doctor.schema.location import SourceLine
from fp16doctor.schema.prescription import (
    GROWS_ON,
    TOGETHER,
    Prescription,
    Recommendation,
    RecommendationStatus,
    Remedy,
    RemedyKind,
    Verdict,
    Verification,
)
from fp16doctor.schema.recording import Caution, Outcome, OutcomeKind, StepInfo

HandMade = dict[str, Callable[[], Diagnosis]]


def answer(diagnosis: Diagnosis) -> AnswerView:
    return build_view(diagnosis).answer


def test_an_overflow_names_value_limit_loss_and_skipped_steps(overflow: Diagnosis) -> None:
    said = answer(overflow)
    assert said.mark == "error"
    assert said.verdict == (
        "the loss is NaN at every step (30 of 30) and 0 of 30 optimizer steps were taken: "
        "`blocks.2.ffn.wo` output reaches 1.84e5, above the fp16 maximum 65504"
    )
    assert said.details == "the loss scale fell from 65536 to 2⁻¹⁴"
    assert said.line == "train.py:40   return self.wo(F.relu(self.wi(x)))"
    assert said.place == "step 0, forward · aten.mm"


def test_a_cure_is_called_verified_only_after_its_replay(overflow: Diagnosis) -> None:
    assert "(verified by replay of steps 0, 3 and 4)" in answer(overflow).do
    cure = overflow.prescriptions[0]
    for verdict in (Verdict.NOT_VERIFIED, Verdict.REFUTED):
        unproved = replace(cure, verification=replace(cure.verification, verdict=verdict))
        do = answer(replace(overflow, prescriptions=(unproved,))).do
        assert "(not verified)" in do
        assert "(verified" not in do


def test_that_two_cures_were_tried_together_is_said_once(overflow: Diagnosis) -> None:
    def part(title: str, reason: str) -> Prescription:
        base = overflow.prescriptions[0]
        proof = replace(base.verification, reason=reason)
        return replace(base, remedy=replace(base.remedy, title=title), verification=proof)

    def do(*reasons: str) -> str:
        both = tuple(map(part, ("keep `a` in fp32", "a loss scale of 2⁸"), reasons))
        chosen = replace(overflow.recommendation, sentence="keep, and scale", prescriptions=(0, 1))
        return answer(replace(overflow, prescriptions=both, recommendation=chosen)).do

    one, two = f"{TOGETHER}a loss scale of 2⁸", f"{TOGETHER}keep `a` in fp32"
    steps = "verified together by replay of steps 0, 3 and 4"
    assert do(one, two) == f"keep, and scale ({steps})"
    bounds = do(f"{one}; with a cast; one step", f"{two}; one step")
    assert bounds == "keep, and scale (verified together: with a cast; one step)"
    reach = do(f"{one}; by replay of step 4 and 10 more; with a cast", two)
    assert (
        reach == "keep, and scale (verified together by replay of step 4 and 10 more; with a cast)"
    )


def test_advice_alone_is_marked_as_not_verified(hand_made: HandMade) -> None:
    assert "(not verified)" in answer(hand_made["raised"]()).do


def test_a_fault_of_logic_says_that_no_dtype_helps(hand_made: HandMade) -> None:
    said = answer(hand_made["logic-nan"]())
    assert "no dtype, loss scale or keep-list cures it" in said.do
    assert "the fp32 replay of the same step has the fault as well" in said.proof
    assert "upstream: aten.masked_fill.Scalar at train.py:60" in said.place


def test_a_cure_that_only_gives_room_stands_behind_the_advice_to_bound(overflow: Diagnosis) -> None:
    first, *others = overflow.prescriptions
    room = replace(first, verification=replace(first.verification, reason=f"`a` {GROWS_ON}"))
    said = answer(replace(overflow, prescriptions=(room, *others))).do
    assert said.startswith("bound what makes the values grow")
    assert f"; until then {overflow.recommendation.sentence} (verified" in said
    assert answer(overflow).do.startswith(overflow.recommendation.sentence)


def test_a_step_is_told_as_the_scripts_loop_counts_where_that_differs(overflow: Diagnosis) -> None:
    site = overflow.findings[0].site
    assert site
    steps = tuple(
        replace(s, loops=(("epoch", 3), ("i", 7)) if s.step == site.step else ())
        for s in overflow.steps
    )
    place = answer(replace(overflow, steps=steps)).place
    assert f"step {site.step} (`epoch` = 3, `i` = 7), forward" in place
    alike = tuple(replace(s, loops=(("i", s.step),)) for s in overflow.steps)
    assert answer(replace(overflow, steps=alike)).place == answer(overflow).place


def test_a_reason_at_the_line_that_is_named_is_not_called_upstream(hand_made: HandMade) -> None:
    diagnosis = hand_made["logic-nan"]()
    top = diagnosis.findings[0]
    beside = replace(top, cause_site=replace(top.site, op="aten.add.Tensor"))
    said = build_view(replace(diagnosis, findings=(beside, *diagnosis.findings[1:]))).answer
    assert "upstream" not in said.place


def test_the_reference_is_the_one_of_the_findings_own_step(hand_made: HandMade) -> None:
    """Another step of the run had fp64 for its reference."""
    logic = hand_made["logic-nan"]()
    wide = replace(logic, replay=replace(logic.replay, reference="fp64"))
    seen = (
        Evidence("non-finite elements", 1.0, "recorded"),
        Evidence("amax", 2.0, "replayed:fp32"),
    )
    top = replace(logic.findings[0], evidence=seen)
    own = replace(wide, findings=(top, *logic.findings[1:]))
    assert "the fp32 replay of the same step has the fault as well" in answer(own).proof
    bare = replace(top, evidence=seen[:1])
    assert "the fp64 replay of the" in answer(replace(own, findings=(bare,))).proof


def test_a_healthy_run_says_so_and_how_much_was_seen(healthy: Diagnosis) -> None:
    said = answer(healthy)
    assert said.mark == "clear"
    assert said.verdict == "nothing wrong found in 30 steps"
    assert said.details == "the loss went from 2.3141 to 0.8641"
    assert said.place == "none to name"
    assert said.do == "nothing to change"


def test_warm_up_is_a_note_and_the_run_stays_clear(hand_made: HandMade) -> None:
    said = answer(hand_made["healthy-with-warm-up"]())
    assert said.mark == "clear"
    assert "2 of 30 optimizer steps were skipped" in said.details


def test_a_failed_check_is_never_silently_clear(healthy: Diagnosis, hand_made: HandMade) -> None:
    failed = hand_made["unexplained"]().checks
    said = answer(replace(healthy, checks=failed))
    assert "1 check failed and answered nothing" in said.verdict
    assert "1 failed check" in said.proof
    assert "no check was run" in answer(replace(healthy, checks=())).verdict


def test_an_exception_says_how_long_before_it_values_went_wrong(hand_made: HandMade) -> None:
    details = answer(hand_made["raised"]()).details
    assert "the script raised ValueError at train.py:99: loss is nan" in details
    assert "first non-finite value 2 steps before the exception: aten.mm at train.py:40" in details


def test_an_exception_in_the_same_step_is_said_to_be_so(hand_made: HandMade) -> None:
    diagnosis = hand_made["raised"]()
    same = replace(diagnosis, steps=diagnosis.steps[:1])
    assert "first non-finite value in the step that raised" in answer(same).details


def test_an_exception_without_a_finding_comes_first(hand_made: HandMade) -> None:
    said = answer(hand_made["raised-without-finding"]())
    assert said.mark == "unknown"
    assert said.verdict == "the script raised KeyError at train.py:99: 'labels'"
    assert said.details.startswith("nothing wrong found in 30 steps; ")
    assert said.line.startswith("train.py:99")


def test_a_note_is_the_answer_where_it_was_born_in_the_step_that_raised(
    hand_made: HandMade,
) -> None:
    diagnosis = hand_made["raised"]()
    site = diagnosis.findings[0].site
    assert site
    exception = replace(
        diagnosis.findings[0],
        severity=Severity.NOTE,
        fault=Fault.OBSERVATION,
        what="the script raised ValueError",
        site=None,
    )
    early, late = (
        replace(diagnosis.findings[0], severity=Severity.NOTE, site=replace(site, step=step))
        for step in (0, 3)
    )
    said = answer(replace(diagnosis, findings=(exception, early, late)))
    assert said.mark == "unknown"
    assert said.place.startswith("step 3, forward")
    assert f"{said.verdict} {said.details}".count("the script raised") == 1
    assert "first non-finite value in the step that raised: aten.mm" in said.details
    assert said.line.startswith("train.py:40")
    assert "nothing wrong" not in f"{said.verdict} {said.details}"
    kept = replace(diagnosis.recommendation, status=RecommendationStatus.NONE_NEEDED)
    bare = replace(late, advice="")
    do = answer(replace(diagnosis, findings=(bare,), recommendation=kept)).do
    assert do == "start at the place above: no cure of it was tried"
    before = answer(replace(diagnosis, findings=(exception, early)))
    assert before.verdict.startswith("the script raised ValueError at train.py:99")


def test_an_exception_that_is_the_finding_is_said_once(hand_made: HandMade) -> None:
    diagnosis = hand_made["raised"]()
    finding = replace(
        diagnosis.findings[0],
        fault=Fault.MISUSE,
        what="the script raised ValueError at `train.py:99`: unscale_() was called twice",
    )
    said = answer(replace(diagnosis, findings=(finding,)))
    assert f"{said.verdict} {said.details}".count("the script raised") == 1


def test_a_message_that_ends_in_a_stop_is_joined_without_it(hand_made: HandMade) -> None:
    diagnosis = hand_made["raised-without-finding"]()
    outcome = replace(diagnosis.run.outcome, message="Function 'B' returned nan values.")
    said = answer(replace(diagnosis, run=replace(diagnosis.run, outcome=outcome)))
    assert said.verdict.endswith("returned nan values")


def test_a_script_that_never_trained(hand_made: HandMade) -> None:
    said = answer(hand_made["never-trained"]())
    assert said.mark == "unknown"
    assert "no optimizer step was seen in `train.py` (ran 4.1\u00a0s)  [no-steps]" in said.verdict
    assert "optimizer.step()" in said.do
    assert said.proof.startswith("nothing was replayed")


def test_a_script_that_trained_in_another_thread(hand_made: HandMade) -> None:
    message = "12 optimizer steps ran in another thread, which was not watched"
    warnings = (Caution("other-thread", message),)
    said = answer(replace(hand_made["never-trained"](), warnings=warnings))
    assert said.verdict.startswith(f"{message} in `train.py` (ran 4.1")
    assert said.verdict.endswith("[other-thread]")
    assert said.do.startswith("train in the main thread, or wrap the loop in `fp16doctor.profile")


def test_a_nan_loss_without_a_finding_is_not_called_healthy(hand_made: HandMade) -> None:
    said = answer(hand_made["unexplained"]())
    assert said.mark == "unknown"
    assert said.verdict == "the loss is NaN at step 1, and no check names a cause"
    assert "not seen: whatever only a replay shows, 1 failed check" in said.proof


def test_a_warning_is_not_called_an_error(overflow: Diagnosis, healthy: Diagnosis) -> None:
    warning = replace(overflow.findings[0], severity=Severity.WARNING)
    said = answer(replace(healthy, findings=(warning,)))
    assert said.mark == "warning"
    assert said.verdict.startswith("no error in 30 steps, one warning: ")


def test_further_findings_are_counted_and_notes_are_not(overflow: Diagnosis) -> None:
    first, note = overflow.findings
    said = answer(replace(overflow, findings=(first, replace(first), note)))
    assert said.details.endswith("; 1 other finding below")


def test_a_finding_without_a_site_and_no_known_cure(overflow: Diagnosis) -> None:
    bare = replace(overflow.findings[0], site=None, advice="")
    none = Recommendation(RecommendationStatus.NONE_FOUND, "")
    said = answer(replace(overflow, findings=(bare,), recommendation=none))
    assert said.place == "the run as a whole, no single op"
    assert said.do == "no cure is known for this finding"


def test_a_line_inside_a_library_sends_the_reader_to_their_own(overflow: Diagnosis) -> None:
    site = overflow.findings[0].site
    assert site
    site = replace(site, caller=SourceLine("main.py", 7, "<module>", "out = model(x)"))
    said = answer(replace(overflow, findings=(replace(overflow.findings[0], site=site),)))
    assert said.line == "main.py:7   out = model(x)"
    assert said.place == "step 0, forward · aten.mm · inside train.py:40"


def test_a_replay_that_differs_says_by_how_much(overflow: Diagnosis) -> None:
    replay = replace(overflow.replay, fidelity=FidelitySummary(False, 3e-4), opaque=1)
    said = answer(replace(overflow, replay=replay))
    assert "with differences from the run of up to 0.0003" in said.proof
    assert "not seen: what feeds 1 op (taken from the run), 2 pinned ops" in said.proof


def test_further_limits_are_counted(overflow: Diagnosis) -> None:
    limits = (Caution("a", "Ranks 1 to 7 were not seen."), Caution("b", "x"), Caution("c", "y"))
    proof = answer(replace(overflow, warnings=limits)).proof
    assert proof.endswith("limit of the observation: Ranks 1 to 7 were not seen  [a]; 2 more below")


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ([math.nan, 1.0, math.nan], "the loss is NaN at 2 of 3 steps (first at step 0)"),
        ([1.0, math.inf, math.nan], "the loss is not finite from step 1 on"),
        ([1.0, math.nan, 1.0], "the loss is NaN at step 1"),
        ([math.nan], "the loss is NaN at step 0"),
        ([1.0, 2.0], "the loss is not finite at step 0"),
        ([None, None], "passes"),
    ],
)
def test_the_story_of_the_loss(losses: list[float | None], words: str, overflow: Diagnosis) -> None:
    finding = replace(overflow.findings[0], what="passes")
    steps = tuple(StepInfo(i, loss) for i, loss in enumerate(losses))
    assert words in answer(replace(overflow, findings=(finding,), steps=steps)).verdict


@pytest.mark.parametrize("kind", [OutcomeKind.EXITED, OutcomeKind.INTERRUPTED])
def test_other_ends_of_the_script(kind: OutcomeKind, healthy: Diagnosis) -> None:
    run = replace(healthy.run, outcome=Outcome(kind, 3))
    said = answer(replace(healthy, run=run))
    if kind is OutcomeKind.EXITED:
        assert said.verdict == "the script exited with status 3"
    else:
        assert said.details.endswith("the script was interrupted")


def test_a_loss_that_is_not_known_is_not_called_finite(overflow: Diagnosis) -> None:
    known = tuple(replace(s, loss=9.0 - s.step / 9, skipped=False) for s in overflow.steps)
    top = replace(overflow.findings[0], reaches=())
    assert top.site is not None
    kept = replace(overflow, steps=known, findings=(top,))
    assert "the loss stays finite, it went from 9 to " in answer(kept).details
    late = replace(top, site=replace(top.site, step=len(known)))
    assert "stays finite" not in answer(replace(kept, findings=(late,))).details


def test_a_loss_that_the_script_left_out_is_told(healthy: Diagnosis, overflow: Diagnosis) -> None:
    note = replace(overflow.findings[0], severity=Severity.NOTE, left_out=True)
    verdict = answer(replace(healthy, findings=(note,))).verdict
    assert "nothing wrong found" not in verdict
    assert "the script left out a loss that was not finite (step 0)" in verdict


def test_a_step_that_made_nan_and_has_no_known_loss_is_told(healthy: Diagnosis) -> None:
    unknown = replace(healthy.steps[3], loss=None, n_nonfinite_ops=5)
    steps = (*healthy.steps[:3], unknown, *healthy.steps[4:])
    verdict = answer(replace(healthy, steps=steps)).verdict
    assert "nothing wrong found" not in verdict
    assert f"step {unknown.step} made inf or NaN, and its loss is not known" in verdict


def test_a_guarded_line_stands_in_front_of_what_no_format_cures(hand_made: HandMade) -> None:
    logic = hand_made["logic-nan"]()
    title = "clamp the count away from 0: `m = s / n.clamp(min=1)` at train.py:27"
    change = "# train.py:27\n- m = s / n\n+ m = s / n.clamp(min=1)"
    cure = Prescription(
        Remedy(RemedyKind.CODE_FIX, title, change),
        (0,),
        Verification(Verdict.VERIFIED, steps=(12,)),
    )
    advice = Recommendation(
        RecommendationStatus.NOT_PRECISION, f"{title} · no format or loss scale changes it", (0,)
    )
    said = answer(replace(logic, prescriptions=(cure,), recommendation=advice))
    assert said.do == (
        f"{title} (verified by replay of step 12) · no format or loss scale changes it"
    )
    assert [p.change for p in said.pastes] == [change]
    untried = replace(cure, verification=Verification(Verdict.NOT_VERIFIED))
    do = answer(replace(logic, prescriptions=(untried,), recommendation=advice)).do
    assert do.startswith(f"{title} (not verified) ·")


def test_a_format_that_was_refuted_is_not_advised(overflow: Diagnosis) -> None:
    cure = overflow.prescriptions[0]
    refuted = replace(cure.verification, verdict=Verdict.REFUTED)
    none = Recommendation(RecommendationStatus.NONE_FOUND, "none of 1 cures meets the criteria")

    def do(advice: str) -> str:
        finding = replace(overflow.findings[0], advice=advice)
        sick = replace(
            overflow,
            findings=(finding, *overflow.findings[1:]),
            prescriptions=(replace(cure, verification=refuted),),
            recommendation=none,
        )
        return answer(sick).do

    formats = "keep `0` in fp32, or train in bf16"
    assert do(f"scale the value, or {formats}").startswith("scale the value (not verified)")
    assert do(formats) == "none of 1 cures meets the criteria"
