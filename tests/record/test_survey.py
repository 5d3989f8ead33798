"""The survey of a run: what is kept of each step, in which units, and within which bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from watched import Record

from fp16doctor.record import range_stats as statistics
from fp16doctor.record import survey as survey_module
from fp16doctor.record.binades import LAYOUTS
from fp16doctor.record.range_device import measure as on_device
from fp16doctor.record.range_hooks import Look
from fp16doctor.record.range_stats import PendingStats, plain, range_stats
from fp16doctor.record.range_track import Track
from fp16doctor.record.recorder import Recorder
from fp16doctor.record.source_lines import SourceLines
from fp16doctor.record.survey_plan import SurveyPlan, sampled
from fp16doctor.schema.ranges import ModuleRanges, RangeStats


def recorder(look: Callable[[int], Look], *, tapes: bool = False) -> Recorder:
    return Recorder(
        SourceLines("."),
        lambda recorder, roll: None,
        lambda step: None,
        plan=SurveyPlan(look),
        wants_tape=lambda step: tapes,
    )


class Loop:
    """A small training loop with a scaler, fp16 inside."""

    def __init__(self, scale: float | None = None, lr: float = 0.1) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        enabled = scale is not None
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=enabled)

    def step(self, factor: float = 1.0) -> Tensor:
        self.optimizer.zero_grad()
        loss = factor * self.model(torch.randn(16, 4)).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()


def run(
    loop: Loop, steps: int, look: Callable[[int], Look] = lambda step: Look.FULL, **options: bool
) -> Recorder:
    watch = recorder(look, **options)
    watch.start()
    try:
        for _ in range(steps):
            loop.step()
    finally:
        watch.stop()
    assert watch.cautions == {}
    return watch


def table(watch: Recorder) -> dict[tuple[str, str], ModuleRanges]:
    return {(r.module_path, r.role): r for r in watch.survey.ranges()}


@pytest.mark.parametrize("tapes", [False, True])
def test_outputs_gradients_weights_and_buffers_are_there(tapes: bool) -> None:
    seen = table(run(Loop(), 2, tapes=tapes))
    for path in ("0", "1", "2", "3", ""):
        assert {(path, "output"), (path, "grad_output")} <= seen.keys()
    for name in ("weight", "bias"):
        assert {
            ("0", name),
            ("0", f"{name}.grad"),
            ("1", name),
            ("3", f"{name}.grad"),
        } <= seen.keys()
    assert {("1", "running_mean"), ("1", "running_var")} <= seen.keys()
    assert ("1", "num_batches_tracked") not in seen
    assert seen["0", "output"].steps == (0, 1)
    assert seen["0", "output"].module_class == "Linear"
    assert seen["0", "output"].stats[0].numel == 16 * 8


def test_a_taped_run_and_one_without_tapes_show_the_same() -> None:
    assert table(run(Loop(), 3, tapes=True)) == table(run(Loop(), 3, tapes=False))


def test_weights_are_as_forward_saw_them() -> None:
    loop = Loop()
    before = [range_stats(p.clone()) for p in loop.model.parameters()]
    seen = table(run(loop, 1))
    names = [n.rpartition(".") for n, _ in loop.model.named_parameters()]
    assert [seen[path, name].stats[0] for path, _, name in names] == before
    gradients = [seen[path, f"{name}.grad"].stats[0] for path, _, name in names]
    assert gradients == [range_stats(p.grad) for p in loop.model.parameters() if p.grad is not None]


def test_steps_between_the_sampled_ones_give_extremes_only() -> None:
    look = lambda step: Look.FULL if sampled(step, 5) else Look.SCREEN  # noqa: E731
    found = table(run(Loop(), 12, look))["0", "output"]
    assert found.steps == (0, 1, 2, 5, 10)
    assert found.n_looked == 12
    assert found.amax >= max(s.amax for s in found.stats)
    everything = table(run(Loop(), 12))["0", "output"]
    assert found.amax == max(s.amax for s in everything.stats)
    assert found.amax_step == everything.amax_step


def test_parameters_get_full_statistics_every_tenth_step_only() -> None:
    seen = table(run(Loop(), 12))
    assert seen["0", "weight"].steps == (0, 10) == seen["0", "weight.grad"].steps
    assert (seen["0", "weight"].n_looked, seen["0", "weight.grad"].n_looked) == (2, 12)


def test_a_parameter_of_no_module_counts_as_the_scripts() -> None:
    watch, loose = recorder(lambda step: Look.FULL), nn.Parameter(torch.ones(4))
    watch.start()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD([loose, *model.parameters()], lr=0.1)
    model(loose * torch.randn(2, 4)).sum().backward()
    optimizer.step()
    watch.stop()
    found = next(r for (_, role), r in table(watch).items() if role.startswith("parameter["))
    assert (found.module_class, found.stats[0].numel) == ("Script", 4)


def test_steps_that_are_not_looked_at_cost_no_tensor_hook() -> None:
    watch, loop = recorder(lambda step: Look.NOTHING), Loop()
    watch.start()
    out = loop.model(torch.randn(3, 4))
    assert not out._backward_hooks
    watch.stop()
    assert watch.survey.ranges() == ()


@pytest.mark.parametrize("tapes", [False, True])
def test_gradients_come_in_scaled_and_in_unscaled_units(tapes: bool) -> None:
    plain = table(run(Loop(), 1))
    scaled = table(run(Loop(scale=1024.0), 1, tapes=tapes))
    mine, other = scaled["0", "grad_output"], plain["0", "grad_output"]
    assert mine.loss_scales == (1024.0,)
    assert mine.amax == 1024.0 * other.amax
    assert mine.amax_unscaled == other.amax == other.amax_unscaled
    assert scaled["0", "weight.grad"].amax == plain["0", "weight.grad"].amax  # unscaled before
    assert scaled["0", "output"].amax_unscaled == plain["0", "output"].amax


@pytest.mark.parametrize("tapes", [False, True])
def test_a_skipped_step_is_booked_with_its_scale_and_its_gradients(tapes: bool) -> None:
    loop, watch = Loop(scale=2.0**10), recorder(lambda step: Look.FULL, tapes=tapes)
    watch.start()
    for factor in (1.0, math.inf, 1.0):
        loop.step(factor)
    watch.stop()
    skipped = [
        (s.step, s.loss_scale, s.found_inf, s.skipped, s.next_loss_scale) for s in watch.book.steps
    ]
    assert skipped == [
        (0, 1024.0, False, False, 1024.0),
        (1, 1024.0, True, True, 512.0),
        (2, 512.0, False, False, 512.0),
    ]
    gradient = table(watch)["0", "weight.grad"]
    assert (gradient.n_nonfinite, gradient.first_nonfinite, gradient.n_looked) == (1, 1, 3)
    assert table(watch)["0", "grad_output"].loss_scales == (1024.0, 1024.0, 512.0)


def test_the_last_step_names_what_was_not_finite_in_order() -> None:
    loop, watch = Loop(), recorder(lambda step: Look.SCREEN)
    watch.start()
    loop.step(math.inf)
    watch.stop()
    assert watch.survey.last.nonfinite[:2] == (("3", "grad_output"), ("", "grad_output"))
    assert ("3", "weight.grad") in watch.survey.last.nonfinite
    assert table(watch)["0", "output"].n_nonfinite == 0


def test_a_long_run_is_bounded_and_loses_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    track, numel = Track("", "Linear", "output"), 0
    one = range_stats(torch.tensor([1.0, 0.0]))
    assert one is not None
    for step in range(1000):
        track.measured(one)
        track.close(step, 1.0)
        track.thin(64)
        numel += one.numel
        assert len(track.samples) <= 64
    found = track.ranges()
    assert sum(s.numel for s in found.stats) == numel
    assert list(found.steps) == sorted(set(found.steps))
    assert found.steps[-20:] == tuple(range(980, 1000))
    monkeypatch.setattr(survey_module, "ALL_SAMPLES", 40)
    many = table(run(Loop(), 12))
    assert {len(r.stats) for r in many.values() if r.role == "output"} == {2}


class Reads(TorchDispatchMode):
    """Counts reads of a device's memory, as a CUDA tensor would have them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("look", [Look.SCREEN, Look.FULL])
def test_one_read_of_the_device_a_step(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of an accelerator, taken on the CPU: nothing is read but once at the close."""

    def deferred(tensor: Tensor, stage: Any = None) -> PendingStats | None:
        x = plain(tensor)
        assert x is not None
        layout = LAYOUTS[x.dtype]
        return PendingStats(on_device(x.reshape(-1), layout), layout, x.numel(), 0)

    monkeypatch.setattr("fp16doctor.record.range_hooks.measure", deferred)
    monkeypatch.setattr("fp16doctor.record.survey.measure", deferred)
    # fp16doctor's own arithmetic hides from modes; show it to this one.
    monkeypatch.setattr(torch._C, "_DisableTorchDispatch", nullcontext)
    monkeypatch.setattr(Tensor, "numpy", lambda tensor: 1 / 0)
    reads, back = [], statistics.read_back

    def counted(vectors: Any) -> Any:
        reads.append(len(vectors))
        return back(vectors)

    monkeypatch.setattr("fp16doctor.record.roll.read_back", counted)
    loop, watch = Loop(), recorder(lambda step: look)
    watch.start()
    with Reads() as mode:
        for _ in range(3):
            loop.step()
    watch.stop()
    assert mode.count == 0
    assert len(reads) == 3
    exact = table(run(Loop(), 3, lambda step: look))
    for key, ranges in table(watch).items():
        assert ranges.amax == exact[key].amax
        for a, b in zip(ranges.stats, exact[key].stats, strict=True):
            assert RangeStats(*_counts(a)) == RangeStats(*_counts(b))
            assert a.sum_abs == pytest.approx(b.sum_abs, rel=1e-5)


def _counts(s: RangeStats) -> tuple[Any, ...]:
    return s.numel, s.n_zero, s.n_nan, s.n_inf, s.amax, s.amin_nonzero, s.exponents


def test_the_bits_are_the_same() -> None:
    def weights(loop: Loop) -> list[Tensor]:
        return [t.clone() for t in loop.model.state_dict().values()]

    plain = Loop(scale=64.0)
    losses = [plain.step() for _ in range(6)]
    assert all(math.isfinite(v) for v in losses)
    for tapes in (False, True):
        loop = Loop(scale=64.0)
        watch = recorder(lambda step: Look.FULL, tapes=tapes)
        watch.start()
        watched = [loop.step() for _ in range(6)]
        watch.stop()
        assert losses == watched
        assert [s.loss for s in watch.book.steps] == pytest.approx([v.item() for v in losses])
        assert all(map(torch.equal, weights(plain), weights(loop)))


def test_the_plan_is_asked_once_a_module() -> None:
    asked: list[str] = []

    def wanted(path: str, module: nn.Module) -> bool:
        asked.append(path)
        return path != "0"

    loop = Loop()
    watch = Recorder(
        SourceLines("."),
        lambda recorder, roll: None,
        lambda step: None,
        plan=SurveyPlan(lambda step: Look.FULL, wanted),
        wants_tape=lambda step: False,
    )
    watch.start()
    for _ in range(4):
        loop.step()
    watch.stop()
    assert sorted(asked) == ["", "0", "1", "2", "3"]
    assert "0" not in {r.module_path for r in watch.survey.ranges()}


def test_the_default_plan_looks_at_the_extremes_of_every_step(record: Record) -> None:
    """Full statistics are taken of few steps; the one that goes wrong may be any."""
    model = nn.Linear(2, 1)

    def run() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for step in range(9):
            optimizer.zero_grad()
            x = torch.full((3, 2), math.inf if step == 7 else 1e3 if step == 6 else 1.0)
            model(x).sum().backward()
            if step != 7:
                optimizer.step()

    ranges = record(run, plan=SurveyPlan()).recorder.survey.ranges()
    (outputs,) = [r for r in ranges if r.role == "output"]
    assert (outputs.amax_step, outputs.first_nonfinite) == (6, 7)
    assert 7 not in outputs.steps


def test_a_fused_optimizer_that_looks_at_found_inf_itself_skips_too() -> None:
    loop, watch = Loop(scale=2.0**10), recorder(lambda step: Look.FULL, tapes=True)
    loop.optimizer = torch.optim.Adam(loop.model.parameters(), fused=True)
    watch.start()
    for factor in (1.0, math.inf, 1.0):
        loop.step(factor)
    watch.stop()
    assert [(s.found_inf, s.skipped) for s in watch.book.steps] == [
        (False, False),
        (True, True),
        (False, False),
    ]
