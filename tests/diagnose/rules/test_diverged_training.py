from __future__ import annotations

from dataclasses import replace

from making import event, observed, sink, site, trace

from fp16doctor.diagnose.engine import diagnose
from fp16doctor.diagnose.rule import Observations
from fp16doctor.diagnose.rules.diverged_training import diverged_training
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.recording import StepInfo
from fp16doctor.schema.trace import Event, ReplayTrace, ShorterUpdate
from fp16doctor.schema.usage import UsageFact, UsageKind

STEP = site("aten.add_.Tensor", 90, step=5, phase=Phase.OPTIMIZER)


def run(
    *losses: float, update: ReplayTrace | None = None, behind: ReplayTrace | None = None
) -> Observations:
    steps = tuple(StepInfo(number, loss=loss) for number, loss in enumerate(losses))
    traces = (update or good_update(), behind or same_loss(), trace(late(), step=8))
    return observed(*traces, steps=steps)


def good_update(gradients: float = 1e-3, parameters: float = 1e-6) -> ReplayTrace:
    sinks = (sink("loss"), sink("gradients", gradients), sink("parameters", parameters))
    return trace(step=5, sinks=sinks, update_site=STEP, loss_after_update=3e6)


def same_loss(reference: float = 4e9) -> ReplayTrace:
    """The loss scale is 1000 in this step."""
    return trace(step=6, loss=4e9, loss_reference=reference)


def late() -> Event:
    return event(step=8)


CALM = (18.0, 17.0, 19.0, 16.0, 15.0, 16.0)
FIRING = run(*CALM, 4e6, 5e6, 4e6)
SILENT = run(*CALM, 4e6, 15.0, 14.0)


def test_the_update_is_named_and_what_overflows_afterwards_is_folded() -> None:
    (finding,) = diagnose(FIRING)[0]
    assert (finding.code, finding.severity) == ("FD116", Severity.ERROR)
    assert finding.site == STEP
    assert finding.what == (
        "the update of step 5 takes the loss from about 16.5 to 4e6, in the fp32 replay as well"
    )
    assert "FD101" in finding.subsumes
    assert [(e.measured, e.source) for e in finding.evidence[:2]] == [
        (4e6, "recorded"),
        (4e6, "replayed:fp32"),
    ]


def test_how_far_off_the_rate_is_has_a_number() -> None:
    tried = ShorterUpdate(ratio=4.8, before=16.0, share=0.01, after=15.5)
    (finding,) = diverged_training(
        run(*CALM, 4e6, 5e6, 4e6, update=replace(good_update(), shorter=tried))
    )
    assert finding.advice.startswith("lower the learning rate of step 5 at `train.py:40` 100-fold")
    assert finding.cause.endswith(
        " The update is 480 % of the size of the weights; 1/100 of it, as of a learning rate as "
        "much lower, takes the loss of its own batch from 16 to 15.5 in fp32."
    )
    assert [(e.measured, e.limit) for e in finding.evidence[2:]] == [(4.8, None), (15.5, 16.0)]


def test_without_a_share_that_helps_no_factor_is_named() -> None:
    tried = ShorterUpdate(ratio=4.8, before=16.0)
    (finding,) = diverged_training(
        run(*CALM, 4e6, 5e6, 4e6, update=replace(good_update(), shorter=tried))
    )
    assert "fold" not in finding.advice
    assert "no tried share of it lowers the loss" in finding.cause


def test_one_batch_with_a_large_loss_is_no_divergence() -> None:
    assert not list(diverged_training(SILENT))
    own_batch = replace(good_update(), loss_after_update=15.0)
    assert not list(diverged_training(run(*CALM, 4e6, 5e6, 4e6, update=own_batch)))


def test_another_update_in_fp32_is_a_matter_of_precision() -> None:
    assert not list(diverged_training(run(*CALM, 4e6, 5e6, 4e6, update=good_update(0.5))))
    assert not list(diverged_training(run(*CALM, 4e6, 5e6, 4e6, update=good_update(0.0, 0.5))))
    born_there = replace(good_update(), events=(event(step=5),))
    assert not list(diverged_training(run(*CALM, 4e6, 5e6, 4e6, update=born_there)))


def test_another_loss_in_fp32_is_a_matter_of_precision() -> None:
    assert not list(diverged_training(run(*CALM, 4e6, 5e6, 4e6, behind=same_loss(1e4))))


def test_a_misuse_that_changes_the_update_is_told_instead() -> None:
    fact = UsageFact(UsageKind.NEVER_UNSCALED, STEP)
    recording = replace(FIRING.recording, usage=(fact,))
    assert not list(diverged_training(replace(FIRING, recording=recording)))


def test_without_any_overflow_it_is_a_note() -> None:
    seen = replace(FIRING, traces=FIRING.traces[:2])
    (finding,) = diverged_training(seen)
    assert finding.severity is Severity.NOTE
