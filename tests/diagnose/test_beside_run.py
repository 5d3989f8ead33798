"""What a run must show for a suspicion of its script to be told beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fp16doctor.diagnose import beside_run
from fp16doctor.diagnose.beside_run import SeenRun
from fp16doctor.diagnose.rule import Observations, all_rules
from fp16doctor.diagnose.script_rule import all_script_rules
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.location import OpSite, Phase, SourceLine
from fp16doctor.schema.recording import Outcome, OutcomeKind, Recording, RunInfo, StepInfo

RUN = RunInfo(
    "train.py", (), Outcome(OutcomeKind.FINISHED), "0", "2", "3", "cpu", "2025-01-01T00:00:00", 1.0
)


def step(number: int, scale: float, after: float | None, *, skipped: bool = False) -> StepInfo:
    return StepInfo(
        number, 1.0, loss_scale=scale, found_inf=skipped, skipped=skipped, next_loss_scale=after
    )


def finding(
    fault: Fault, phase: Phase = Phase.FORWARD, severity: Severity = Severity.ERROR
) -> Finding:
    line = SourceLine("train.py", 7, "<module>", "y = net(x)")
    site = OpSite(0, phase, "aten.mm.default", 3, source=line)
    return Finding("FD101", "activation-overflow", severity, fault, "what", "cause", site)


def run(*steps: StepInfo, findings: tuple[Finding, ...] = (), **info: object) -> SeenRun:
    recording = Recording(replace(RUN, **info), steps)  # type: ignore[arg-type]
    return SeenRun(Observations(recording), findings)


def test_every_script_rule_declares_one_and_names_rules_that_are_there() -> None:
    declared = {value for value in vars(beside_run).values() if callable(value)}
    names = {rule.name for rule in all_rules()}
    for rule in all_script_rules():
        assert rule.stands in declared
        assert set(rule.same_as) <= names


def test_a_rule_that_the_run_has_as_well_is_decided_by_the_run() -> None:
    names = {rule.name for rule in all_rules()}
    for rule in all_script_rules():
        if rule.name in names:
            assert rule.stands is beside_run.decided_by_run


@pytest.mark.parametrize("rule", all_script_rules(), ids=lambda r: r.code)
def test_nothing_is_told_of_a_run_without_steps(rule: object) -> None:
    assert not rule.stands(run())  # type: ignore[attr-defined]


def test_updates() -> None:
    scaled = "GradScaler"
    assert beside_run.never_updated(run(StepInfo(0, 1.0), loss_scaling=scaled))
    assert not beside_run.never_updated(run(step(0, 8.0, 8.0), loss_scaling=scaled))
    assert not beside_run.never_updated(run(StepInfo(0, 1.0), loss_scaling="none"))
    assert not beside_run.never_updated(run(loss_scaling=scaled))


def test_skips_after_an_applied_step_count_and_those_before_it_do_not() -> None:
    warm_up = (step(0, 8.0, 4.0, skipped=True), step(1, 4.0, 4.0))
    assert not beside_run.skipped_in_training(run(*warm_up))
    assert beside_run.skipped_in_training(run(*warm_up, step(2, 4.0, 2.0, skipped=True)))


def test_a_scale_that_is_carried_refutes_a_scaler_made_anew() -> None:
    carried = (step(0, 8.0, 4.0, skipped=True), step(1, 4.0, 4.0))
    anew = (step(0, 8.0, 4.0, skipped=True), step(1, 8.0, 4.0, skipped=True))
    assert not beside_run.scale_not_carried(run(*carried))
    assert beside_run.scale_not_carried(run(*anew))
    assert not beside_run.scale_not_carried(run(step(0, 8.0, 8.0)))


def test_parameters_in_fp16() -> None:
    steps = (StepInfo(0, 1.0),)
    fp16 = (("float16", 8),)
    assert beside_run.stored_in_fp16(run(*steps, parameters_by_dtype=fp16))
    assert not beside_run.stored_in_fp16(run(*steps, parameters_by_dtype=(("float32", 8),)))
    harmed = (finding(Fault.NAN_BIRTH, Phase.OPTIMIZER),)
    assert not beside_run.stored_in_fp16(run(*steps, findings=harmed, parameters_by_dtype=fp16))


def test_families() -> None:
    forward = run(findings=(finding(Fault.OVERFLOW),))
    backward = run(findings=(finding(Fault.OVERFLOW, Phase.BACKWARD),))
    note = run(findings=(finding(Fault.OVERFLOW, Phase.BACKWARD, Severity.NOTE),))
    assert beside_run.values_grew(forward)
    assert not beside_run.gradients_overflowed(forward)
    assert beside_run.gradients_overflowed(backward)
    assert not beside_run.gradients_overflowed(note)
    assert not beside_run.values_grew(note)
    assert beside_run.gradients_underflowed(run(findings=(finding(Fault.UNDERFLOW),)))


def test_sums_in_16_bits_are_told_until_a_rule_finds_one() -> None:
    ran = (("bfloat16", 3),)
    assert beside_run.sums_in_16_bits(run(ops_by_dtype=ran))
    assert not beside_run.sums_in_16_bits(run(ops_by_dtype=(("float32", 3),)))
    lost = (finding(Fault.LOST_UPDATE),)
    assert not beside_run.sums_in_16_bits(run(findings=lost, ops_by_dtype=ran))


def test_lines_of_errors_and_of_the_exception() -> None:
    loud = run(findings=(finding(Fault.OVERFLOW),))
    assert loud.is_blamed("train.py", 7)
    assert not loud.is_blamed("train.py", 8)
    assert not run(findings=(finding(Fault.OVERFLOW, severity=Severity.NOTE),)).is_blamed(
        "train.py", 7
    )
    at = SourceLine("train.py", 4, "<module>")
    raised = run(outcome=Outcome(OutcomeKind.RAISED, 1, "RuntimeError", "no", at))
    assert raised.raised_at("train.py", 4)
    assert not raised.raised_at("train.py", 5)


def test_a_finding_is_held_by_its_name() -> None:
    seen = run(findings=(finding(Fault.OVERFLOW),))
    assert seen.holds("half-accumulation", "activation-overflow")
    assert not seen.holds("half-accumulation")
