from __future__ import annotations

import pytest
from making import attempts, event, gradient, observed, plain, scaled_trace, trace

from fp16doctor.diagnose.rules.gradient_overflow import gradient_overflow
from fp16doctor.schema.finding import Fault, Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.recording import StepInfo

FIRING = observed(trace(gradient(step=1), step=1), steps=plain(3))
SILENT = observed(trace(event()), steps=plain(3))


def test_gradient_without_scaler_is_an_overflow_with_its_excess() -> None:
    (finding,) = gradient_overflow(FIRING)
    assert finding.fault is Fault.OVERFLOW
    assert finding.severity is Severity.ERROR
    assert "exceeds the fp16 range by 2¹" in finding.cause
    assert "divide the loss scale, where there is one, by 2¹" in finding.advice


def test_warm_up_is_a_scale_that_is_too_high() -> None:
    seen = observed(scaled_trace(gradient(4e5)), steps=attempts("sss..."))
    (finding,) = gradient_overflow(seen)
    assert (finding.fault, finding.severity) == (Fault.LOSS_SCALE, Severity.NOTE)
    assert finding.what.endswith("at loss scale 65536: the scale is too high by 2³")
    assert finding.advice == ""


def test_scale_that_never_fits_is_advised_a_lower_start() -> None:
    seen = observed(scaled_trace(gradient(4e5)), steps=attempts("ssssss"))
    (finding,) = gradient_overflow(seen)
    assert (finding.fault, finding.severity) == (Fault.LOSS_SCALE, Severity.ERROR)
    assert "GradScaler(init_scale=8192)" in finding.advice


def test_gradient_too_large_without_any_scale_is_an_overflow() -> None:
    seen = observed(scaled_trace(gradient(1e8), scale=2.0), steps=attempts("ssss", scale=2.0))
    (finding,) = gradient_overflow(seen)
    assert finding.fault is Fault.OVERFLOW
    assert "without the loss scale 2 it is 5e7" in finding.cause


def test_norm_in_the_optimizer_phase_is_advised_fp32() -> None:
    norm = gradient(op="aten.linalg_vector_norm.default", phase=Phase.OPTIMIZER)
    (finding,) = gradient_overflow(observed(trace(norm), steps=plain(1)))
    assert finding.advice == "compute the norm in fp32: `p.grad.float()`"
    assert "in the optimizer phase" in finding.what


def test_seed_of_backward_exceeds_by_one_power() -> None:
    seen = observed(scaled_trace(gradient(65536.0)), steps=attempts("s.."))
    (finding,) = gradient_overflow(seen)
    assert "too high by 2¹" in finding.what


def _by_hand(kinds: str) -> tuple[StepInfo, ...]:
    """Return attempts of a scaler written by hand: ``s`` skipped, ``.`` taken."""
    return tuple(StepInfo(i, loss=1.0, skipped=k == "s") for i, k in enumerate(kinds))


def test_step_that_the_script_left_out_is_a_note() -> None:
    (finding,) = gradient_overflow(observed(trace(gradient()), steps=_by_hand("ss......s.......")))
    assert (finding.severity, finding.advice) == (Severity.NOTE, "")
    assert "The script checked for it and did not take the step." in finding.cause
    assert "GradScaler" not in finding.cause


@pytest.mark.parametrize("kinds", ["ssssss", "s..s..s..s..s..s..s..s..s.."])
def test_script_that_keeps_leaving_steps_out_has_an_error(kinds: str) -> None:
    (finding,) = gradient_overflow(observed(trace(gradient()), steps=_by_hand(kinds)))
    assert finding.severity is Severity.ERROR
