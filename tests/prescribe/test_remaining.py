"""A cure has to take the very fault away, also where a later op makes the infinity finite."""

from __future__ import annotations

from dataclasses import replace

from fp16doctor.prescribe.remaining import faults_of, remaining
from fp16doctor.replay.trial import Trial
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.location import OpSite, Phase, SourceLine
from fp16doctor.schema.policy import AS_RUN, FP32

LINE = SourceLine("train.py", 15, "train", "total = sum((g * g).sum() for g in grads) ** 0.5")
SUM = OpSite(0, Phase.OPTIMIZER, "aten.sum.default", 40, source=LINE)
SQUARE = replace(SUM, op="aten.mul.Tensor", index=38)
ELSEWHERE = replace(SUM, source=replace(LINE, line=16))
FOUND = Finding("FD104", "gradient-overflow", Severity.ERROR, Fault.OVERFLOW, "", "", SUM)


def of(*births: OpSite) -> Trial:
    return Trial(AS_RUN, births=list(births))


def test_the_fault_that_is_still_there_is_named() -> None:
    assert remaining(of(SUM), Trial(FP32), faults_of([FOUND])) == (
        "`aten.sum.default` at train.py:15 makes inf or NaN there"
    )


def test_another_op_of_the_line_is_the_same_fault() -> None:
    assert remaining(of(SQUARE), Trial(FP32), faults_of([FOUND]))


def test_what_is_gone_or_meant_is_none() -> None:
    faults = faults_of([FOUND])
    assert remaining(of(), Trial(FP32), faults) == ""
    assert remaining(of(ELSEWHERE), Trial(FP32), faults) == ""
    assert remaining(of(SUM), Trial(FP32, births=[SUM]), faults) == ""


def test_only_findings_that_demand_a_wider_format_count() -> None:
    assert not faults_of([replace(FOUND, severity=Severity.NOTE)])
    assert not faults_of([replace(FOUND, code="FD112", fault=Fault.NAN_BIRTH)])
