from __future__ import annotations

import dataclasses

from precise import seen_updates, update

from fp16doctor.diagnose.rule import Observations
from fp16doctor.diagnose.rules.optimizer_state_underflow import optimizer_state_underflow
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.recording import StepInfo

FIRING = seen_updates(update(0.9, role="state", format="fp16", underflows=40))
SILENT = seen_updates(update(0.9, role="state", format="fp16", underflows=3))


def test_counts_elements_that_became_zero() -> None:
    (finding,) = optimizer_state_underflow(FIRING)
    assert "40 of 64 elements of one are zero and should not be" in finding.what


def test_buffers_of_the_forward_are_not_optimizer_state() -> None:
    seen = seen_updates(update(0.9, role="state", underflows=40, phase=Phase.FORWARD))
    assert not list(optimizer_state_underflow(seen))


def _run(losses: tuple[float, ...], parameters: str) -> Observations:
    recording = FIRING.recording
    stored = dataclasses.replace(recording.run, parameters_by_dtype=((parameters, 9),))
    steps = tuple(StepInfo(i, loss=loss) for i, loss in enumerate(losses))
    recording = dataclasses.replace(recording, run=stored, steps=steps)
    return dataclasses.replace(FIRING, recording=recording)


def test_loss_that_explodes_behind_it_makes_it_an_error() -> None:
    at = FIRING.updates[0].site.step
    calm = (1.4,) * (at + 1)
    for after, severity in (((900.0,) * 3, Severity.ERROR), ((1.2,) * 3, Severity.WARNING)):
        (finding,) = optimizer_state_underflow(_run(calm + after, "float16"))
        assert finding.severity is severity


def test_a_16_bit_model_is_no_matter_where_the_parameters_are_fp32() -> None:
    (finding,) = optimizer_state_underflow(_run((1.0,), "float32"))
    assert finding.advice.startswith("keep the optimizer's state in fp32 where")
    (finding,) = optimizer_state_underflow(_run((1.0,), "float16"))
    assert "autocast instead of a 16-bit model" in finding.advice
