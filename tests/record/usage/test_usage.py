"""Real loops in this process: a misuse gives its fact and no other, a sound loop gives none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

import loops

from fp16doctor.record.recorder import Recorder
from fp16doctor.record.source_lines import SourceLines
from fp16doctor.schema.location import Phase
from fp16doctor.schema.usage import UsageFact, UsageKind


def watch(loop: Callable[[], None]) -> Recorder:
    lines = SourceLines(str(Path(__file__).parent))
    recorder = Recorder(lines, lambda recorder, roll: None, lambda done: None)
    recorder.start()
    try:
        loop()
    finally:
        recorder.stop()
    assert not recorder.cautions
    return recorder


def facts_of(loop: Callable[[], None]) -> tuple[UsageFact, ...]:
    return watch(loop).usage.facts


def the_fact(loop: Callable[[], None], kind: UsageKind) -> UsageFact:
    (fact,) = facts_of(loop)
    assert fact.kind is kind
    return fact


def text(fact: UsageFact) -> str:
    assert fact.site.source is not None
    assert fact.site.source.file == "loops.py"
    return fact.site.source.text or ""


@pytest.mark.parametrize("name", loops.RIGHT)
def test_a_sound_loop_gives_no_fact(name: str) -> None:
    assert facts_of(loops.RIGHT[name]) == ()


def test_clipping_by_norm_before_unscale() -> None:
    fact = the_fact(loops.wrong(loops.clip_norm), UsageKind.SCALED_CLIP)
    assert (fact.loss_scale, fact.limit, fact.steps) == (loops.SCALE, 0.1, 3)
    assert fact.site.phase is Phase.OPTIMIZER
    assert text(fact).startswith("nn.utils.clip_grad_norm_")
    assert fact.coefficient is not None
    assert 0 < fact.coefficient < 0.01


def test_the_factor_that_clipping_applied_is_the_true_one() -> None:
    norms: list[float] = []

    def body(b: loops.Bench) -> None:
        norms.append(loops.norm_by_hand(b))
        loops.clip_norm(b)

    fact = next(f for f in facts_of(loops.wrong(body)) if f.kind is UsageKind.SCALED_CLIP)
    assert fact.coefficient == pytest.approx(0.1 / max(norms), rel=1e-4)


def test_clipping_by_value_before_unscale() -> None:
    fact = the_fact(loops.wrong(loops.clip_value), UsageKind.SCALED_CLIP)
    assert (fact.limit, fact.coefficient) == (0.5, None)


def test_clipping_by_hand_before_unscale() -> None:
    fact = the_fact(loops.wrong(loops.clip_by_hand), UsageKind.SCALED_CLIP)
    assert text(fact) == "p.grad.mul_(1 / norm)"
    assert fact.coefficient is not None
    assert fact.coefficient < 1


def test_a_norm_that_is_only_read() -> None:
    the_fact(loops.wrong(loops.read_norm), UsageKind.SCALED_NORM)


def test_a_plain_step_on_scaled_gradients() -> None:
    fact = the_fact(loops.wrong(loops.plain_step), UsageKind.NEVER_UNSCALED)
    assert (fact.optimizer, fact.loss_scale, fact.by_hand) == ("SGD", loops.SCALE, False)
    assert text(fact) == "b.opt.step()"


def test_a_constant_that_is_never_divided_out() -> None:
    fact = the_fact(loops.scaled_by_hand_never_divided, UsageKind.NEVER_UNSCALED)
    assert (fact.loss_scale, fact.by_hand) == (loops.SCALE, True)


def test_a_second_step_on_the_same_gradients() -> None:
    fact = the_fact(loops.wrong(loops.step_again), UsageKind.STEPPED_TWICE)
    assert fact.detail == "scaler.step"
    assert text(fact) == "b.opt.step()"


def test_a_division_by_hand_and_by_the_scaler() -> None:
    the_fact(loops.wrong(loops.divide_then_step), UsageKind.UNSCALED_TWICE)


def test_unscale_in_each_micro_batch() -> None:
    facts = facts_of(loops.unscaled_in_each_micro_batch)
    assert {f.kind for f in facts} == {UsageKind.MIXED_SCALES, UsageKind.UNSCALED_TWICE}
    mixed = facts[0]
    assert (mixed.site.step, mixed.loss_scale) == (1, loops.SCALE)


def test_an_auxiliary_gradient_of_ones() -> None:
    ones = loops.attached(lambda b, aux: torch.ones_like(aux))
    fact = the_fact(ones, UsageKind.UNSCALED_INJECTION)
    assert (fact.loss_scale, fact.detail) == (loops.SCALE, "ones_like")
    assert fact.site.phase is Phase.BACKWARD


def test_autocast_around_the_loop() -> None:
    fact = the_fact(loops.autocast_around_the_loop, UsageKind.STALE_CAST)
    assert (fact.format, fact.site.step, fact.steps) == ("bf16", 1, 2)
    assert fact.site.module_path == "0"


def test_fp16_without_a_scale() -> None:
    fact = the_fact(loops.no_scale, UsageKind.FP16_WITHOUT_SCALE)
    assert text(fact) == "b.loss().backward()"


def test_a_scaler_in_a_bf16_run() -> None:
    the_fact(loops.scaler_in_bf16, UsageKind.BF16_WITH_SCALER)


def test_a_logarithm_of_a_16_bit_softmax() -> None:
    fact = the_fact(loops.log_of_softmax, UsageKind.SOFTMAX_THEN_LOG)
    assert (fact.format, fact.site.op) == ("fp16", "aten.log.default")


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there: nothing is switched off")
@pytest.mark.filterwarnings("ignore")
def test_what_torch_switches_off_without_cuda() -> None:
    def loop() -> None:
        torch.amp.GradScaler("cuda")
        torch.amp.GradScaler("cuda", enabled=False)
        with torch.autocast("cuda", dtype=torch.float16):
            pass
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=False):
            pass

    asked = watch(loop).usage.not_in_effect()
    assert [(f.detail, f.format) for f in asked] == [("GradScaler", ""), ("autocast", "fp16")]


def test_what_ran_is_told() -> None:
    usage = watch(loops.wrong(loops.clip_norm)).usage
    assert usage.run.autocast == ("cpu float16",)
    assert usage.run.scaling(switched_off=False) == "GradScaler"
    assert usage.run.parameters == (("float32", 8 * 16 + 16 + 16 * 4 + 4),)
    assert dict(usage.run.bytes)["float16"] > 0


def test_everything_wrapped_is_put_back() -> None:
    owners = (torch.amp.GradScaler, torch.cuda.amp.common)
    before = [dict(vars(owner)) for owner in owners]
    watch(loops.bf16_without_scaler)
    assert [dict(vars(owner)) for owner in owners] == before
