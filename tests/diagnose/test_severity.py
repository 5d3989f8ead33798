"""Severity is a pure function of the facts: every row of its table."""

from __future__ import annotations

import dataclasses

import pytest
from making import attempts, event, gradient, observed, plain, scaled_trace, sink, site, trace

from fp16doctor.diagnose.measures import has_impact, scale_keeps_falling, severity_of
from fp16doctor.diagnose.rule import Observations
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.recording import Outcome, OutcomeKind
from fp16doctor.schema.trace import Event, EventKind, ReplayTrace

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


def judged(seen: Observations) -> Severity:
    step = seen.traces[0]
    return severity_of(seen, step, step.events[0])


def wrong(name: str, *events: Event, error: float = 0.4) -> ReplayTrace:
    return trace(*events, sinks=(sink(name, error=error),))


HEALED = event(reaches=())


def test_event_without_impact_is_a_note() -> None:
    assert judged(observed(trace(HEALED), steps=plain(1))) is NOTE
    assert judged(observed(trace(event(reaches=(), n_nan=1)), steps=plain(1))) is NOTE


@pytest.mark.parametrize("reaches", [("loss",), ("gradients",), ("parameters",), ("buffers",)])
def test_event_that_reaches_a_sink_without_scaler_is_an_error(reaches: tuple[str, ...]) -> None:
    assert judged(observed(trace(event(reaches=reaches)), steps=plain(1))) is ERROR


@pytest.mark.parametrize("name", ["loss", "gradients"])
def test_healed_event_with_a_finite_wrong_sink_is_an_error(name: str) -> None:
    assert judged(observed(wrong(name, HEALED), steps=plain(1))) is ERROR


def test_healed_event_with_a_sink_within_rounding_is_a_note() -> None:
    assert judged(observed(wrong("loss", HEALED, error=0.05), steps=plain(1))) is NOTE


@pytest.mark.parametrize("error", [None, float("nan"), float("inf")])
def test_undefined_error_of_a_sink_is_no_impact(error: float | None) -> None:
    step = trace(HEALED, sinks=(sink("loss", error=error),))
    assert not has_impact(observed(step, steps=plain(1)), step, HEALED)


def test_wrong_sink_that_another_event_reaches_says_nothing_about_this_one() -> None:
    other = event(index=90, reaches=("gradients",))
    step = wrong("gradients", HEALED, other)
    assert not has_impact(observed(step, steps=plain(1)), step, HEALED)


def test_wrong_loss_says_nothing_about_backward() -> None:
    healed = gradient(reaches=())
    step = wrong("loss", healed)
    assert not has_impact(observed(step, steps=plain(1)), step, healed)


class TestRunThatEndsInMidStep:
    """Step 2 has no attempt: the script ended in it."""

    NAN_CHECK = Outcome(OutcomeKind.RAISED, 1, "ValueError", "loss is NaN at step 2")
    OTHER = Outcome(OutcomeKind.RAISED, 1, "KeyError", "'lr'")

    def judged(self, outcome: Outcome, born: Event, *, count: int = 2) -> Severity:
        return judged(observed(trace(born, step=2), steps=plain(count), outcome=outcome))

    @pytest.mark.parametrize("outcome", [NAN_CHECK, OTHER, Outcome(OutcomeKind.FINISHED)])
    def test_nan_is_an_error(self, outcome: Outcome) -> None:
        made = event(reaches=(), first_nan=site(index=40))
        assert self.judged(outcome, made) is ERROR

    def test_infinity_is_an_error_where_the_exception_speaks_of_it(self) -> None:
        assert self.judged(self.NAN_CHECK, HEALED) is ERROR
        assert self.judged(Outcome(OutcomeKind.RAISED, 1, "AssertionError", ""), HEALED) is ERROR
        assert self.judged(self.OTHER, HEALED) is NOTE

    def test_mask_is_a_note_even_then(self) -> None:
        mask = event(op="aten.masked_fill.Scalar", constant=-1e9, exact=-1e9, reaches=())
        assert self.judged(self.NAN_CHECK, mask) is NOTE

    def test_finished_step_is_judged_by_its_sinks(self) -> None:
        made = event(reaches=(), first_nan=site(index=40))
        assert self.judged(self.NAN_CHECK, made, count=3) is NOTE


def test_event_after_the_update_without_sinks_is_a_note() -> None:
    assert judged(observed(wrong("loss", event(reaches=(), in_tail=True)))) is NOTE


def test_parameters_are_an_error_whatever_the_scaler_did() -> None:
    born = gradient(reaches=("gradients", "parameters"))
    assert judged(observed(scaled_trace(born), steps=attempts("s.."))) is ERROR


def test_scaler_that_did_not_skip_is_no_help() -> None:
    step = dataclasses.replace(scaled_trace(gradient()), found_inf=True)
    assert judged(observed(step, steps=attempts("..."))) is ERROR
    missed = dataclasses.replace(step, found_inf=False)
    assert judged(observed(missed, steps=attempts("..."))) is ERROR


class TestScaledGradient:
    def test_warm_up_that_heals_is_a_note(self) -> None:
        assert judged(observed(scaled_trace(gradient()), steps=attempts("sss."))) is NOTE

    def test_running_script_is_given_time(self) -> None:
        seen = observed(scaled_trace(gradient()), steps=attempts("sssss"), final=False)
        assert judged(seen) is NOTE

    def test_attempt_that_is_not_over_yet_counts_as_handled(self) -> None:
        assert judged(observed(scaled_trace(gradient()), final=False)) is NOTE

    def test_run_that_ends_in_skips_is_an_error(self) -> None:
        assert judged(observed(scaled_trace(gradient()), steps=attempts("ssss"))) is ERROR

    def test_too_few_later_attempts_to_tell(self) -> None:
        assert judged(observed(scaled_trace(gradient()), steps=attempts("sss"))) is NOTE

    def test_one_skip_a_growth_window_is_a_note(self) -> None:
        steps = attempts("s" + "." * 39 + "s" + "." * 39)
        assert judged(observed(scaled_trace(gradient(), step=40), steps=steps)) is NOTE

    def test_skips_after_warm_up_with_a_falling_scale_are_an_error(self) -> None:
        steps = attempts("s...." * 8)
        assert judged(observed(scaled_trace(gradient(), step=20), steps=steps)) is ERROR

    def test_warm_up_of_such_a_run_is_no_recurrence(self) -> None:
        seen = observed(steps=attempts("s...." * 8))
        assert not scale_keeps_falling(seen, 0)
        assert scale_keeps_falling(seen, 20)

    def test_scale_that_grows_back_is_not_falling(self) -> None:
        steps = tuple(
            dataclasses.replace(s, loss_scale=4.0, next_loss_scale=4.0)
            for s in attempts(".s...." * 8)
        )
        assert not scale_keeps_falling(observed(steps=steps), 25)


@pytest.mark.parametrize("kind", [EventKind.OVERFLOW, EventKind.BOUNDARY, EventKind.LOGIC])
class TestForwardUnderAScaler:
    def test_rare_skip_is_a_note(self, kind: EventKind) -> None:
        steps = attempts("." * 20 + "s" + "." * 19)
        assert judged(observed(scaled_trace(event(kind), step=20), steps=steps)) is NOTE

    def test_skip_at_the_very_end_is_an_error(self, kind: EventKind) -> None:
        steps = attempts("." * 39 + "s")
        assert judged(observed(scaled_trace(event(kind), step=39), steps=steps)) is ERROR

    @pytest.mark.parametrize("pattern", ["s........", "s" + "." * 20 + "ss" + "." * 80])
    def test_more_than_rare_is_an_error(self, kind: EventKind, pattern: str) -> None:
        assert judged(observed(scaled_trace(event(kind)), steps=attempts(pattern))) is ERROR

    def test_running_script_is_given_two_skips(self, kind: EventKind) -> None:
        step = scaled_trace(event(kind))
        assert judged(observed(step, steps=attempts("ss"), final=False)) is NOTE
        assert judged(observed(step, steps=attempts("sss"), final=False)) is ERROR


@pytest.mark.parametrize("kind", [EventKind.BOUNDARY, EventKind.LOGIC])
def test_no_scale_cures_what_is_no_overflow_in_backward(kind: EventKind) -> None:
    born = event(kind, phase=Phase.BACKWARD)
    assert judged(observed(scaled_trace(born), steps=attempts("s..."))) is ERROR


def test_unreplayed_op_with_impact_is_a_warning() -> None:
    born = event(EventKind.UNKNOWN, exact=None, reference=None)
    assert judged(observed(trace(born), steps=plain(1))) is WARNING
