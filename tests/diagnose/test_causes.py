"""Which events are causes and which are counted under one."""

from __future__ import annotations

import pytest
from making import event, gradient, observed, scaled_trace, site, trace

from fp16doctor.diagnose.causes import Cause, causes
from fp16doctor.schema.trace import Event, EventKind, ReplayTrace

# An event whose value in the reference run fits fp16: it would not have happened by itself.
FITTING = {"reference": 12.0}


def of(*traces: ReplayTrace) -> tuple[Cause, ...]:
    return causes(observed(*traces))


def indices(found: tuple[Cause, ...]) -> list[int]:
    return [cause.event.site.index for cause in found]


def later(index: int = 50, kind: EventKind = EventKind.OVERFLOW, **kwargs: object) -> Event:
    return event(kind, index=index, **(FITTING | kwargs))


def test_later_event_that_fits_in_the_reference_is_a_consequence() -> None:
    (cause,) = of(trace(event(), later(), later(60, EventKind.BOUNDARY)))
    assert cause.folded == 2
    assert cause.heirs == 214 + 2


def test_order_on_the_tape_decides_not_the_order_in_the_trace() -> None:
    assert indices(of(trace(later(), event()))) == [10]


def test_later_event_that_overflows_in_the_reference_too_is_a_cause() -> None:
    assert indices(of(trace(event(), later(reference=9e4)))) == [10, 50]


@pytest.mark.parametrize("kind", [EventKind.INTENDED, EventKind.OVERFLOW])
def test_event_without_impact_explains_nothing(kind: EventKind) -> None:
    found = of(trace(event(kind, reaches=()), later()))
    assert indices(found)[-1] == 50


def test_boundary_whose_reason_lies_before_the_first_cause_is_its_own_cause() -> None:
    reason = site("aten._softmax.default", index=4)
    born = later(kind=EventKind.BOUNDARY, cause_site=reason)
    assert indices(of(trace(event(), born))) == [10, 50]
    same = event(EventKind.BOUNDARY, cause_site=reason)
    assert indices(of(trace(same, born))) == [10]
    downstream = later(kind=EventKind.BOUNDARY, cause_site=site(index=30))
    assert indices(of(trace(event(), downstream))) == [10]


def test_internal_overflow_on_undisturbed_inputs_is_its_own_cause() -> None:
    born = later(kind=EventKind.INTERNAL_OVERFLOW, exact=4.0e4, reference=4.01e4)
    assert indices(of(trace(event(), born))) == [10, 50]
    disturbed = later(kind=EventKind.INTERNAL_OVERFLOW, exact=4.0e4, reference=3.0)
    assert indices(of(trace(event(), disturbed))) == [10]


def test_after_a_fault_of_logic_everything_is_its_consequence() -> None:
    logic = event(EventKind.LOGIC, exact=None, reference=None)
    assert indices(of(trace(logic, later(reference=9e4), later(60, EventKind.LOGIC)))) == [10]


def test_op_that_could_not_be_replayed_after_a_cause_is_a_consequence() -> None:
    unknown = event(EventKind.UNKNOWN, index=50, exact=None, reference=None)
    assert indices(of(trace(event(), unknown))) == [10]


def test_gradients_beyond_the_format_by_the_scale_alone_have_one_cause() -> None:
    assert indices(of(scaled_trace(gradient(), gradient(3e5, index=50)))) == [10]
    assert indices(of(trace(gradient(), gradient(3e5, index=50)))) == [10, 50]


def test_steps_after_poisoned_parameters_tell_nothing_new() -> None:
    poisoning = event(reaches=("gradients", "parameters"))
    following = trace(event(EventKind.LOGIC, step=1, index=3), step=1)
    (cause,) = of(following, trace(poisoning))
    assert cause.event is poisoning
    assert cause.folded == 1


def test_steps_are_judged_one_by_one() -> None:
    first = trace(event())
    second = trace(event(step=1, **FITTING), step=1)
    assert [c.event.site.step for c in of(second, first)] == [0, 1]
