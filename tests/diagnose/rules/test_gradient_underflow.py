from __future__ import annotations

from dataclasses import replace

from making import event, trace
from precise import gradient_loss, op_loss, precise, seen_traces

from fp16doctor.diagnose.rule import Observations
from fp16doctor.diagnose.rules.gradient_underflow import gradient_underflow
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.precision import PrecisionFacts

LOST = precise(ops=(op_loss(),), gradients=(gradient_loss(), gradient_loss(name="head.weight")))
SOUND = precise(gradients=(gradient_loss(lost=0.0), gradient_loss(lost=1e-4)))
FIRING = seen_traces(LOST)
SILENT = seen_traces(SOUND)


def test_names_the_op_behind_which_the_gradient_is_gone() -> None:
    (finding,) = gradient_underflow(FIRING)
    assert finding.severity is Severity.ERROR
    assert finding.site is not None
    assert finding.site.op == "aten.mm.default"
    assert "2 of 2 parameters" in finding.what
    assert "10 zeros of `trunk.weight` that the reference has too are not counted" in finding.cause


def test_the_op_where_values_become_subnormal_is_the_cause_site() -> None:
    entry = op_loss(20, lost_share=0.0, subnormal_share=0.99, amax_reference=2.7e-6)
    facts = precise(ops=(entry, op_loss(60)), gradients=(gradient_loss(),))
    (finding,) = gradient_underflow(seen_traces(facts))
    assert finding.cause_site == entry.site
    assert "by at least 2⁵" in finding.advice  # 2.7e-6 · 2⁵ is above 2⁻¹⁴


def test_a_gradient_that_is_rounding_noise_does_not_count() -> None:
    noise = gradient_loss(noise=0.99, mass=1e-9)
    assert not list(gradient_underflow(seen_traces(precise(gradients=(noise,)))))


def test_one_lost_step_among_many_sound_ones_is_not_a_finding() -> None:
    assert not list(gradient_underflow(seen_traces(LOST, SOUND, SOUND, SOUND)))


def test_steps_in_which_something_overflowed_say_nothing_about_underflow() -> None:
    overflowed = trace(event(), precision=PrecisionFacts(gradients=(gradient_loss(),)))
    assert not list(gradient_underflow(seen_traces(overflowed)))


def small_and_large(small_mass: float, **facts: float) -> Observations:
    """Half of the parameters are lost, with next to nothing of the gradient."""
    lost = gradient_loss(total=1000, mass=small_mass, zeros_reference=0)
    kept = gradient_loss(lost=0.0, total=1000, mass=2.0, zeros_reference=0, name="head.weight")
    return seen_traces(precise(gradients=(lost, kept), **facts))


def test_severity_follows_the_share_of_the_update_not_the_count_of_parameters() -> None:
    (note,) = gradient_underflow(small_and_large(2e-8))
    assert (note.severity, note.advice) == (Severity.NOTE, "")
    (warning,) = gradient_underflow(small_and_large(2e-2))
    assert warning.severity is Severity.WARNING
    (error,) = gradient_underflow(small_and_large(1.0))
    assert error.severity is Severity.ERROR


def test_under_adam_a_small_gradient_moves_a_weight_as_far_as_a_large_one() -> None:
    """2e-5 over 1000 elements: 2e-8 each, twice Adam's eps."""
    (finding,) = gradient_underflow(small_and_large(2e-5, update_floor=1e-8))
    assert finding.severity is Severity.ERROR
    (far_below,) = gradient_underflow(small_and_large(2e-10, update_floor=1e-8))
    assert far_below.severity is Severity.NOTE


def test_adams_eps_stands_against_the_gradient_without_its_scale() -> None:
    (trace,) = small_and_large(2e-5, update_floor=1e-8).traces
    scaled = replace(trace, loss_scale=65536.0)
    (finding,) = gradient_underflow(seen_traces(scaled))
    assert finding.severity is Severity.NOTE


def test_a_small_layer_alone_is_a_warning() -> None:
    small = gradient_loss(total=10, mass=1e-3)
    facts = precise(gradients=(small, gradient_loss(lost=0.0, total=10_000)))
    (finding,) = gradient_underflow(seen_traces(facts))
    assert finding.severity is Severity.WARNING


def coarse(error: float, own: float, inherited: float = 0.0) -> Observations:
    """No element is lost; the op that makes the gradients leaves them subnormal."""
    entry = op_loss(
        20, lost_share=0.0, subnormal_share=0.99, amax_reference=2e-6, error=own,
        inherited_error=inherited,
    )  # fmt: skip
    gradient = gradient_loss(lost=0.0, error=error)
    return seen_traces(precise(ops=(entry,), gradients=(gradient,), gradient_error=error))


def test_gradients_that_are_no_zeros_but_keep_too_few_bits() -> None:
    (finding,) = gradient_underflow(coarse(0.5, 0.4))
    assert finding.severity is Severity.ERROR
    assert finding.what == (
        "gradients of 1 of 1 parameter keep too few bits in fp16: `trunk.weight` is 50 % off"
    )
    (weaker,) = gradient_underflow(coarse(0.2, 0.2))
    assert weaker.severity is Severity.WARNING


def test_an_error_that_subnormal_numbers_did_not_make_is_none_of_theirs() -> None:
    assert not list(gradient_underflow(coarse(0.5, 1e-3)))
    assert not list(gradient_underflow(coarse(0.5, 0.5, inherited=0.45)))
    assert not list(gradient_underflow(coarse(0.01, 0.4)))
