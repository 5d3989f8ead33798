"""What is proposed for a finding, and the recommendation in one sentence."""

from __future__ import annotations

from making import LINE, attempts, event, gradient, observed, plain, scaled_trace, site, trace

from fp16doctor.diagnose.engine import diagnose
from fp16doctor.diagnose.rule import Observations
from fp16doctor.prescribe.plan import plan
from fp16doctor.prescribe.treatable import op_target, target
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.location import SourceLine
from fp16doctor.schema.prescription import (
    Prescription,
    Recommendation,
    RecommendationStatus,
    RemedyKind,
    Verdict,
)
from fp16doctor.schema.recording import Outcome, OutcomeKind
from fp16doctor.schema.trace import EventKind

LOGIC = event(EventKind.LOGIC, exact=None, reference=None)


def planned(seen: Observations) -> tuple[tuple[Prescription, ...], Recommendation]:
    return plan(diagnose(seen)[0])


def kinds(seen: Observations) -> dict[RemedyKind, Prescription]:
    return {p.remedy.kind: p for p in planned(seen)[0]}


def test_overflow_is_offered_keep_list_and_bf16() -> None:
    offered = kinds(observed(trace(event()), steps=plain(1)))
    assert offered[RemedyKind.FP32_KEEP].remedy.title == "keep `blocks.2.ffn.wo` in fp32"
    assert offered[RemedyKind.FP32_KEEP].remedy.target == ("module:blocks.2.ffn.wo",)
    assert offered[RemedyKind.DTYPE].remedy.value == "bf16"
    assert RemedyKind.CODE_FIX not in offered  # its advice is to change the format: that is tried
    assert {p.treats for p in offered.values()} == {(0,)}


def test_nothing_is_said_to_be_verified() -> None:
    prescriptions, _ = planned(observed(trace(event()), steps=plain(1)))
    assert prescriptions
    for prescription in prescriptions:
        assert prescription.verification.verdict is Verdict.NOT_VERIFIED
        reason = prescription.verification.reason
        assert "no step was kept" in reason or "needs an edit" in reason


def test_one_keep_list_treats_all_findings_of_precision() -> None:
    other = event(index=80, op="aten.sum.default", module_path="head")
    keep = kinds(observed(trace(event(), other), steps=plain(1)))[RemedyKind.FP32_KEEP]
    assert keep.remedy.target == ("module:blocks.2.ffn.wo", "module:head")
    assert keep.treats == (0, 1)


def test_repeats_and_the_place_of_the_reason_are_kept_too() -> None:
    born = event(
        EventKind.BOUNDARY,
        op="aten.log.default",
        exact=float("-inf"),
        operands=(("self", 0.0, 1e-8),),
        cause_site=site("aten._softmax.default", index=8, module_path="head"),
    )
    offered = kinds(observed(trace(born), steps=plain(1)))
    assert offered[RemedyKind.FP32_KEEP].remedy.target == ("module:blocks.2.ffn.wo", "module:head")
    # bf16 rounds more coarsely: no cure for a value that was rounded away.
    assert RemedyKind.DTYPE not in offered


def test_bf16_is_not_offered_to_a_bf16_run() -> None:
    born = event(format="bf16", exact=1e39, reference=1e39, reference_amax=1e39)
    assert RemedyKind.DTYPE not in kinds(observed(trace(born), steps=plain(1)))


def test_too_high_a_scale_is_no_matter_of_the_format() -> None:
    offered = kinds(observed(scaled_trace(gradient()), steps=attempts("ssssss")))
    assert set(offered) == {RemedyKind.CODE_FIX}


def test_targets_follow_the_grammar() -> None:
    top = SourceLine("train.py", 27, "<module>")
    assert target(site(module_path=None)) == "function:train.py:FFN.forward"
    assert target(site(module_path=None, source=top)) == "line:train.py:27"
    assert target(site(module_path=None, source=None)) == "op:aten.mm"


def test_notes_ask_for_nothing() -> None:
    prescriptions, answer = planned(observed(trace(event(reaches=())), steps=plain(1)))
    assert prescriptions == ()
    assert answer.status is RecommendationStatus.NONE_NEEDED


def test_fault_of_logic_is_not_precision() -> None:
    prescriptions, answer = planned(observed(trace(LOGIC), steps=plain(1)))
    assert answer.status is RecommendationStatus.NOT_PRECISION
    assert "no format or loss scale changes it" in answer.sentence
    assert {p.remedy.kind for p in prescriptions} == {RemedyKind.CODE_FIX}


def test_what_to_examine_next_is_no_change_of_the_script() -> None:
    look = Finding("FD115", "nonfinite-state", Severity.ERROR, Fault.NAN_BIRTH, "w", "c", site(),
                   advice="have step 3 examined")  # fmt: skip
    cures, answer = plan((look,))
    assert not cures
    assert "have step 3 examined" in answer.sentence


def test_without_a_kept_step_the_advice_is_passed_on_as_not_verified() -> None:
    findings = diagnose(observed(trace(event()), steps=plain(1)))[0]
    _, answer = plan(findings)
    assert answer.status is RecommendationStatus.NONE_FOUND
    assert answer.sentence == f"{findings[0].advice}; not verified by a replay"


def test_misuse_stops_before_precision_matters() -> None:
    message = "Attempting to unscale FP16 gradients."
    outcome = Outcome(OutcomeKind.RAISED, 1, "ValueError", message, LINE)
    prescriptions, answer = planned(observed(outcome=outcome))
    assert answer.status is RecommendationStatus.NONE_FOUND
    assert [p.remedy.target for p in prescriptions] == [("line:train.py:40",)]


def test_the_op_alone_is_named_by_its_forward() -> None:
    assert op_target(site(op="aten.sigmoid_backward.default")) == "op:aten.sigmoid"
    assert op_target(site(op="aten.sigmoid.default")) == "op:aten.sigmoid"
