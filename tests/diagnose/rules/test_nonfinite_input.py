from __future__ import annotations

import dataclasses

from making import event, observed, plain, site, trace

from fp16doctor.diagnose.causes import causes
from fp16doctor.diagnose.rules.nonfinite_input import nonfinite_input
from fp16doctor.schema.finding import Fault, Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.recording import StepInfo
from fp16doctor.schema.trace import EventKind, Poison, ReplayTrace, SinkState

BATCH = Poison(
    site("aten.addmm.default", index=4), site("aten.copy_.default", index=1), nan=True,
    is_batch=True, later_nonfinite=9, reaches=("gradients", "loss", "parameters"),
)  # fmt: skip
WEIGHT = dataclasses.replace(
    BATCH, made_at=BATCH.site, is_batch=False, is_parameter=True, name="head.weight"
)
LOST = tuple(SinkState(name, 1, 1, 1, None) for name in ("loss", "gradients", "parameters"))
FINE = tuple(SinkState(name, 1, 0, 0, 0.0) for name in ("loss", "gradients", "parameters"))


def given(poison: Poison, step: int = 4, *events: object, fine: bool = False) -> ReplayTrace:
    made = trace(*events, step=step)  # type: ignore[arg-type]
    return dataclasses.replace(made, poisons=(poison,), sinks=FINE if fine else LOST)


FIRING = observed(given(BATCH), steps=plain(6))
SILENT = observed(given(BATCH, fine=True), steps=plain(6))


def test_names_the_batch_the_step_and_the_line_that_reads_it() -> None:
    (finding,) = nonfinite_input(FIRING)
    assert finding.what == "the batch already holds NaN when step 4 first reads it"
    assert (finding.fault, finding.severity) == (Fault.NAN_BIRTH, Severity.ERROR)
    assert finding.site == BATCH.site
    assert finding.cause_site == BATCH.made_at
    assert finding.reaches == ("loss", "gradients", "parameters")
    assert "check the data of the batch of step 4" in finding.advice
    assert "verified" not in finding.advice


def test_names_a_parameter_that_was_never_filled() -> None:
    (finding,) = nonfinite_input(observed(given(WEIGHT, step=0)))
    assert finding.what.startswith("parameter `head.weight` already holds NaN when step 0")
    assert finding.cause_site is None


def test_a_parameter_that_an_earlier_birth_made_nan_is_no_second_finding() -> None:
    broken = trace(event(EventKind.OVERFLOW, reaches=("gradients", "parameters")), step=3)
    assert not list(nonfinite_input(observed(broken, given(WEIGHT), steps=plain(6))))
    unseen = (StepInfo(3, loss=1.0, n_ops=20, n_nonfinite_ops=5), StepInfo(4))
    assert not list(nonfinite_input(observed(given(WEIGHT), steps=unseen)))
    sound = (StepInfo(3, loss=1.0, n_ops=20), StepInfo(4))
    assert list(nonfinite_input(observed(given(WEIGHT), steps=sound)))


def test_names_the_op_that_put_it_there_at_the_end_of_the_step_before() -> None:
    copied = site("aten.copy_.default", index=30, step=3, phase=Phase.OPTIMIZER)
    writer = Poison(copied, copied, nan=True, later_nonfinite=1, reaches=("parameters",))
    before = dataclasses.replace(given(writer, step=3), sinks=LOST[2:])
    unseen = (StepInfo(3, loss=1.0, n_ops=20, n_nonfinite_ops=1), StepInfo(4))
    (finding,) = nonfinite_input(observed(before, given(WEIGHT), steps=unseen))
    assert finding.cause_site == copied
    assert finding.cause.endswith("at `train.py:40` put it there in step 3.")


def test_a_birth_in_front_of_the_loss_goes_first() -> None:
    logic = event(EventKind.LOGIC, op="aten._softmax.default", step=4)
    seen = observed(given(BATCH, 4, logic), steps=plain(6))
    assert not list(nonfinite_input(seen))
    assert len(causes(seen)) == 1


def test_what_the_optimizer_makes_of_it_is_no_cause() -> None:
    update = event(
        EventKind.LOGIC, op="aten.addcdiv_.default", step=4, index=90, phase=Phase.OPTIMIZER,
        reaches=("parameters",),
    )  # fmt: skip
    seen = observed(given(BATCH, 4, update), steps=plain(6))
    assert len(list(nonfinite_input(seen))) == 1
    assert not causes(seen)


def test_a_format_alone_is_no_input() -> None:
    sinks = tuple(SinkState(name, 1, 1, 0, None) for name in ("loss", "gradients"))
    found = dataclasses.replace(given(BATCH), sinks=sinks)
    assert not list(nonfinite_input(observed(found, steps=plain(6))))


def test_a_loss_that_the_script_left_out_is_a_note() -> None:
    spared = dataclasses.replace(BATCH, reaches=(), left=True)
    (finding,) = nonfinite_input(observed(given(spared, fine=True), steps=plain(6)))
    assert (finding.severity, finding.left_out) == (Severity.NOTE, True)


def test_a_step_that_the_scaler_skipped_is_a_note() -> None:
    steps = (*plain(4), StepInfo(4, skipped=True), StepInfo(5))
    (finding,) = nonfinite_input(observed(given(BATCH), steps=steps))
    assert finding.severity is Severity.NOTE
