"""The engine: isolation, outcomes, ranking, one finding per cause."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import (
    EMPTY,
    LINE,
    attempts,
    event,
    gradient,
    observed,
    plain,
    scaled_trace,
    sink,
    trace,
)

from fp16doctor.diagnose.engine import diagnose
from fp16doctor.diagnose.rule import Observations, Rule
from fp16doctor.schema.finding import Fault, Finding, OutcomeOfCheck, Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.recording import Outcome, OutcomeKind
from fp16doctor.schema.trace import Event, EventKind


def outcomes(seen: Observations) -> dict[str, OutcomeOfCheck]:
    return {check.code: check.outcome for check in diagnose(seen)[1]}


def test_a_failing_rule_is_reported_and_stops_nothing() -> None:
    def broken(seen: Observations) -> Iterator[Finding]:
        raise ZeroDivisionError("no steps")
        yield

    def fine(seen: Observations) -> Iterator[Finding]:
        yield Finding("FD998", "fine", Severity.NOTE, Fault.OBSERVATION, "w", "c.", None)

    rules = (
        Rule("FD997", "broken", ("recording",), "", broken),
        Rule("FD998", "fine", ("recording",), "", fine),
    )
    findings, checks = diagnose(EMPTY, rules)
    assert [f.code for f in findings] == ["FD998"]
    assert checks[0].outcome is OutcomeOfCheck.FAILED
    assert checks[0].detail == "ZeroDivisionError: no steps"
    assert checks[1].outcome is OutcomeOfCheck.FOUND


def test_rules_without_their_facts_are_not_applicable() -> None:
    result = outcomes(EMPTY)
    assert result["FD101"] is OutcomeOfCheck.NOT_APPLICABLE
    assert result["FD401"] is OutcomeOfCheck.NOT_APPLICABLE
    assert result["FD901"] is OutcomeOfCheck.CLEAR


def test_rules_with_their_facts_are_found_or_clear() -> None:
    result = outcomes(observed(trace(event()), steps=attempts("...")))
    assert result["FD101"] is OutcomeOfCheck.FOUND
    assert result["FD112"] is OutcomeOfCheck.CLEAR
    assert result["FD401"] is OutcomeOfCheck.CLEAR
    assert OutcomeOfCheck.FAILED not in result.values()


def test_errors_come_first_then_the_earliest_step_then_the_earliest_op() -> None:
    harmless = event(index=1, op="aten.exp.default", reaches=())
    late = event(index=50, op="aten.bmm.default")
    step_1 = trace(event(step=1, op="aten.exp.default"), step=1)
    findings, _ = diagnose(observed(step_1, trace(harmless, late, event()), steps=plain(2)))
    assert [(f.severity.value, f.site and f.site.step, f.site and f.site.index) for f in findings]
    assert [(f.site.step, f.site.index) for f in findings if f.site] == [(0, 10), (0, 50), (1, 10)]


def test_one_line_in_several_modules_and_steps_is_one_finding() -> None:
    other = event(index=80, module_path="blocks.3.ffn.wo")
    again = event(step=1)
    findings, _ = diagnose(observed(trace(again, step=1), trace(event(), other), steps=plain(2)))
    (finding,) = findings
    assert finding.site == event().site
    assert finding.repeats == (other.site, again.site)


def test_the_most_severe_of_the_merged_is_the_one_that_speaks() -> None:
    harmless, serious = event(reaches=()), event(step=3)
    (finding,), _ = diagnose(observed(trace(harmless), trace(serious, step=3), steps=plain(4)))
    assert finding.severity is Severity.ERROR
    assert finding.site == serious.site
    assert finding.repeats == (harmless.site,)


def test_different_lines_are_different_findings() -> None:
    other = event(index=80, source=dataclasses.replace(LINE, line=77))
    findings, _ = diagnose(observed(trace(event(), other), steps=plain(1)))
    assert len(findings) == 2


def test_warm_up_is_one_note_wherever_the_gradients_passed_the_limit() -> None:
    other = gradient(step=1, source=dataclasses.replace(LINE, line=77))
    steps = attempts("ss..")
    seen = observed(scaled_trace(gradient()), scaled_trace(other, step=1, scale=2.0**15),
                    steps=steps)  # fmt: skip
    (finding,), _ = diagnose(seen)
    assert (finding.code, finding.severity) == ("FD104", Severity.NOTE)
    assert finding.repeats == (other.site,)


def test_collapse_is_folded_under_the_error_that_explains_it() -> None:
    seen = observed(scaled_trace(event()), steps=attempts("ssssss"))
    (finding,), _ = diagnose(seen)
    assert finding.code == "FD101"
    assert finding.subsumes == ("FD401",)
    assert "0 of 6 optimizer steps were taken" in finding.cause
    assert any(e.quantity == "skipped steps" for e in finding.evidence)


def test_collapse_stays_a_finding_of_its_own_where_only_warm_up_was_examined() -> None:
    seen = observed(scaled_trace(gradient()), steps=attempts("s....." + "s" * 20))
    findings, _ = diagnose(seen)
    assert [(f.code, f.severity) for f in findings] == [
        ("FD401", Severity.ERROR),
        ("FD104", Severity.NOTE),
    ]


def test_infinity_that_is_meant_is_no_finding() -> None:
    assert diagnose(observed(trace(event(EventKind.INTENDED, reaches=()))))[0] == ()


FLOATS = st.none() | st.floats(width=32)
EVENTS = st.builds(
    event,
    st.sampled_from(EventKind),
    op=st.sampled_from(["aten.mm.default", "aten.div.Tensor", "aten._softmax.default", "x", ""]),
    index=st.integers(0, 50),
    phase=st.sampled_from(Phase),
    source=st.sampled_from([None, LINE]),
    module_path=st.sampled_from([None, "", "a.b"]),
    element=st.sampled_from([None, (), (3, 4)]),
    format=st.sampled_from(["fp16", "bf16", "fp32", "fp64", "fp8_e4m3", "complex64"]),
    exact=FLOATS,
    reference=FLOATS,
    reference_amax=FLOATS,
    constant=FLOATS,
    cause_as_run=FLOATS,
    cause_exact=FLOATS,
    n_nan=st.integers(0, 2),
    integer_operand=st.booleans(),
    later_nonfinite=st.integers(0, 2),
    reaches=st.sampled_from([(), ("loss",), ("loss", "gradients"), ("parameters", "buffers")]),
    operands=st.lists(
        st.tuples(st.just("self"), st.floats(width=32), st.floats(width=32)), max_size=2
    ).map(tuple),
    in_tail=st.booleans(),
)
SINKS = st.lists(st.builds(sink, st.sampled_from(["loss", "gradients"]), FLOATS), max_size=2)
OUTCOMES = st.builds(
    Outcome,
    st.sampled_from(OutcomeKind),
    message=st.none() | st.text(max_size=20),
    source=st.sampled_from([None, LINE]),
)


def seen_with(events: st.SearchStrategy[list[Event]]) -> st.SearchStrategy[Observations]:
    steps = st.integers(0, 4).flatmap(lambda k: st.tuples(st.just(k), events))
    traces = st.tuples(steps, SINKS, FLOATS, FLOATS, st.sampled_from([None, True, False])).map(
        lambda t: trace(*t[0][1], step=t[0][0], sinks=tuple(t[1]), loss=t[2], loss_scale=t[3],
                        loss_reference=t[2], found_inf=t[4])
    )  # fmt: skip
    return st.builds(
        lambda traces, pattern, outcome, final: observed(
            *traces, steps=attempts(pattern), outcome=outcome, final=final
        ),
        st.lists(traces, max_size=3),
        st.text("s.", max_size=12),
        OUTCOMES,
        st.booleans(),
    )


@settings(max_examples=150, deadline=None)
@given(seen_with(st.lists(EVENTS, max_size=4)))
def test_whatever_was_seen_no_rule_fails(seen: Observations) -> None:
    findings, checks = diagnose(seen)
    assert [c for c in checks if c.outcome is OutcomeOfCheck.FAILED] == []
    assert all(f.what and f.cause for f in findings)


@settings(max_examples=50, deadline=None)
@given(seen_with(st.just([])))
def test_traces_without_events_make_no_error(seen: Observations) -> None:
    findings, _ = diagnose(seen)
    # Not of a trace: that the scaler skipped, and that the script raised.
    of_traces = [f for f in findings if f.code not in ("FD401", "FD901")]
    assert of_traces == []


@pytest.mark.parametrize("steps", [plain(5), attempts("ss" + "." * 60), attempts("." * 9)])
def test_healthy_runs_have_no_finding(steps: tuple[object, ...]) -> None:
    assert diagnose(observed(trace(), trace(step=1), steps=steps))[0] == ()  # type: ignore[arg-type]
