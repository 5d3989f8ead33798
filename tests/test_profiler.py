"""``fp16doctor.profile``: the loop runs as without it, and what it did is known afterwards."""

from __future__ import annotations

import copy
import io
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.optim import optimizer as torch_optimizer
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

import fp16doctor
from fp16doctor.errors import UsageError
from fp16doctor.profiler import TroubleError
from fp16doctor.schema.codec import from_json, to_json
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.recording import OutcomeKind


class Loop:
    def __init__(self, dtype: torch.dtype | None = torch.bfloat16) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.dtype = dtype

    def step(self, factor: float = 1.0) -> float:
        self.optimizer.zero_grad()
        with torch.autocast("cpu", self.dtype or torch.bfloat16, enabled=self.dtype is not None):
            loss = self.model(factor * torch.randn(16, 4)).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def weights(self) -> list[Tensor]:
        return [t.clone() for t in self.model.state_dict().values()]


def hooks() -> list[Any]:
    return [
        torch_modules._global_forward_hooks,
        torch_modules._global_forward_pre_hooks,
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
        _get_current_dispatch_mode_stack(),
        torch.autograd.backward,
        torch.amp.GradScaler.update,
        torch.amp.GradScaler.step,
    ]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Any:
    before = [copy.copy(h) for h in hooks()]
    yield
    assert before == hooks()


def ranges(diagnosis: Diagnosis) -> dict[tuple[str, str], Any]:
    return {(r.module_path, r.role): r for r in diagnosis.ranges}


def test_a_loop_gives_the_same_bits_and_a_diagnosis() -> None:
    plain, loop = Loop(), Loop()
    torch.manual_seed(1)
    losses = [plain.step() for _ in range(15)]
    torch.manual_seed(1)
    with fp16doctor.profile(loop.model, loop.optimizer) as prof:
        watched = [loop.step() for _ in range(15)]
    assert losses == watched
    assert all(map(torch.equal, plain.weights(), loop.weights()))
    steps = prof.diagnosis.steps
    assert [s.step for s in steps] == list(range(15))
    assert [s.loss for s in steps] == losses
    assert [s.n_ops > 0 for s in steps] == [True] * 3 + [False] * 12
    found = ranges(prof.diagnosis)["0", "output"]
    assert (found.steps, found.n_looked) == ((0, 1, 2, 10), 15)
    assert prof.diagnosis.run.outcome.kind is OutcomeKind.FINISHED
    assert prof.diagnosis.findings == ()


def test_it_needs_no_arguments() -> None:
    loop = Loop()
    with fp16doctor.profile() as prof:
        loop.step()
    assert ("2", "weight.grad") in ranges(prof.diagnosis)


def test_no_mode_is_active_in_a_step_that_is_not_taped() -> None:
    loop, active = Loop(), []
    loop.model[1].register_forward_hook(
        lambda *_: active.append(len(_get_current_dispatch_mode_stack()))
    )
    with fp16doctor.profile(loop.model):
        for _ in range(6):
            loop.step()
    assert active == [1, 1, 1, 0, 0, 0]


def test_the_step_after_trouble_is_taped_and_trouble_is_told_once() -> None:
    told: list[Diagnosis] = []
    loop = Loop()
    with fp16doctor.profile(loop.model, on_trouble=told.append) as prof:
        for step in range(10):
            loop.step(math.inf if step == 5 else 1.0)
    assert [s.step for s in prof.diagnosis.steps if s.n_ops] == [0, 1, 2, 6]
    assert len(told) == 1
    (warning,) = [w for w in told[0].warnings if w.slug == "trouble-not-taped"]
    assert "step 5" in warning.message
    assert ranges(prof.diagnosis)["0", "output"].first_nonfinite == 5


def test_an_error_on_a_taped_step_is_found_and_raised_if_wanted() -> None:
    loop, prof = Loop(dtype=None), fp16doctor.profile(on_trouble="raise")
    loop.model.half()
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.0)  # type: ignore[assignment]
    done = []

    def train() -> None:
        with prof:
            for step in range(5):
                loop.optimizer.zero_grad()
                factor = 6e4 if step == 1 else 1.0
                (loop.model(torch.ones(16, 4).half()) * factor).square().mean().backward()
                loop.optimizer.step()
                done.append(step)

    with pytest.raises(TroubleError, match=r"stopped.*FD1.*\[trouble\]") as caught:
        train()
    assert done == [0, 1]
    assert caught.value.diagnosis.findings[0].site.step == 1
    assert prof.diagnosis.findings[0].site.source is not None
    assert prof.diagnosis.run.outcome.kind is OutcomeKind.RAISED


def unscaled_half(**options: Any) -> fp16doctor.profile:
    """A model in fp16 without a loss scale, and a loss of inf in a step that is not taped."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1).half()
    optimizer, prof = torch.optim.SGD(model.parameters(), lr=0.01), fp16doctor.profile(**options)
    with prof:
        for step in range(7):
            optimizer.zero_grad()
            loss = model(torch.ones(8, 4).half()).float().square().mean()
            (loss * (math.inf if step == 5 else 1.0)).backward()
            optimizer.step()
    return prof


def test_trouble_is_told_rather_than_a_note() -> None:
    told: list[Diagnosis] = []
    unscaled_half(on_trouble=told.append)
    assert told[0].findings[0].severity is Severity.NOTE
    with pytest.raises(TroubleError, match="step 5, which was not taped: the gradients of"):
        unscaled_half(on_trouble="raise")


def test_the_schedule_that_is_suggested_tapes_every_step() -> None:
    with pytest.raises(TroubleError) as caught:
        unscaled_half(on_trouble="raise")
    schedule = "lambda step: torch.profiler.ProfilerAction.RECORD_AND_SAVE"
    assert f"`schedule={schedule}`" in str(caught.value)
    found = unscaled_half(schedule=lambda step: torch.profiler.ProfilerAction.RECORD_AND_SAVE)
    assert all(s.n_ops for s in found.diagnosis.steps)
    assert found.diagnosis.findings[0].severity is Severity.ERROR


def infinite_at(bad: int, prof: Any, steps: int = 6) -> None:
    loop = Loop()
    with prof:
        for step in range(steps):
            loop.step(math.inf if step == bad else 1.0)


def test_trouble_in_the_very_last_step_is_raised_at_the_end() -> None:
    with pytest.raises(TroubleError):
        infinite_at(5, fp16doctor.profile(on_trouble="raise"))


def test_a_report_on_trouble_is_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, early = tmp_path / "run.json", []
    prof = fp16doctor.profile(on_trouble="report", output=target)
    forward = Loop.step

    def step(loop: Loop, factor: float = 1.0) -> float:
        if target.exists():
            early.append(len(from_json(target.read_text()).steps))
        return forward(loop, factor)

    monkeypatch.setattr(Loop, "step", step)
    with pytest.warns(RuntimeWarning, match="step 4"):
        infinite_at(4, prof, steps=7)
    assert early == [5]
    assert len(from_json(target.read_text()).steps) == 7


def test_an_exception_in_the_loop_leaves_a_diagnosis() -> None:
    loop, prof = Loop(), fp16doctor.profile()

    def train() -> None:
        with prof:
            for step in range(5):
                loop.step()
                if step == 3:
                    raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError):
        train()
    outcome = prof.diagnosis.run.outcome
    assert (outcome.kind, outcome.exception, outcome.message) == (
        OutcomeKind.RAISED, "ZeroDivisionError", "mine",
    )  # fmt: skip
    assert outcome.source is not None
    assert outcome.source.text == 'raise ZeroDivisionError("mine")'
    assert len(prof.diagnosis.steps) == 4


def test_what_is_known_so_far_can_be_asked_for_inside() -> None:
    loop = Loop()
    with fp16doctor.profile() as prof:
        for _ in range(4):
            loop.step()
        assert len(prof.diagnosis.steps) == 3  # the fourth is open
        assert prof.summary()
    assert len(prof.diagnosis.steps) == 4


def test_models_are_saved_and_copied_inside() -> None:
    loop = Loop()
    with fp16doctor.profile(loop.model):
        for _ in range(5):
            loop.step()
            stream = io.BytesIO()
            torch.save(loop.model, stream)
            twin = copy.deepcopy(loop.model)
            stream.seek(0)
            again = torch.load(stream, weights_only=False)
            assert torch.equal(again[0].weight, twin[0].weight)


def test_outputs_of_every_kind(tmp_path: Path) -> None:
    loop = Loop()
    with fp16doctor.profile(output=tmp_path / "end.html") as prof:
        loop.step()
    assert (tmp_path / "end.html").read_text().lower().startswith("<!doctype html>")
    page = prof.report(tmp_path / "page.html")
    assert page.read_text() == (tmp_path / "end.html").read_text()
    document = prof.report(tmp_path / "run.json").read_text()
    assert to_json(from_json(document)) == document == to_json(prof.diagnosis)
    assert "verdict" in prof.summary()
    assert prof._repr_html_().startswith("<iframe srcdoc=")


def test_a_schedule_of_torch_profiler_decides_each_step() -> None:
    loop = Loop()
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)
    with fp16doctor.profile(loop.model, schedule=schedule) as prof:
        for _ in range(6):
            loop.step()
    found = ranges(prof.diagnosis)["0", "output"]
    assert (found.n_looked, found.steps) == (3, (2, 3))
    assert [s.step for s in prof.diagnosis.steps if s.n_ops] == [3]


def test_modules_are_chosen_by_pattern_and_named_as_in_the_model() -> None:
    loop = Loop()
    wrapper = nn.ModuleDict({"module": loop.model})
    wrapper.forward = lambda x: wrapper["module"](x)  # type: ignore[method-assign]
    with fp16doctor.profile(loop.model, modules=["0", "x.*"]) as prof:
        wrapper(torch.randn(2, 4)).sum().backward()
        loop.optimizer.step()
    assert {path for path, _ in ranges(prof.diagnosis)} == {"0"}


def test_a_loop_without_an_optimizer_says_where_its_steps_end() -> None:
    model = nn.Linear(4, 1)
    with fp16doctor.profile(model, schedule=lambda step: "WARMUP") as prof:
        for _ in range(3):
            model(torch.randn(2, 4)).sum().backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad  # type: ignore[operator]
                    p.grad = None
            prof.step()
    assert len(prof.diagnosis.steps) == 3
    assert ranges(prof.diagnosis)["", "output"].n_looked == 3


def test_a_mode_of_the_script_is_respected() -> None:
    class Mine(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    loop, seen, mine = Loop(), [], Mine()  # type: ignore[var-annotated, no-untyped-call]
    plan = {2: "RECORD_AND_SAVE", 4: "RECORD_AND_SAVE"}
    with fp16doctor.profile(schedule=lambda step: plan.get(step, "WARMUP")) as prof:
        for step in range(6):
            if step == 4:
                with mine:
                    loop.step()
            else:
                loop.step()
    assert seen
    assert [s.step for s in prof.diagnosis.steps if s.n_ops] == [2]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"model": 3}, "model=3"),
        ({"optimizer": "adam"}, "optimizer='adam'"),
        ({"every": 0}, "every=0"),
        ({"schedule": 5}, "schedule=5"),
        ({"on_trouble": "cry"}, "on_trouble='cry'"),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        fp16doctor.profile(**arguments)


def test_a_schedule_that_answers_nonsense_is_refused_at_the_start() -> None:
    with pytest.raises(UsageError, match=r"schedule= answered 7"):
        fp16doctor.profile(schedule=lambda step: 7).__enter__()


def test_entering_twice_or_inside_another_is_refused() -> None:
    with fp16doctor.profile() as prof:
        with pytest.raises(UsageError, match="profile-running"):
            fp16doctor.profile().__enter__()
        with pytest.raises(UsageError, match="profile-running"):
            prof.__enter__()
    with pytest.raises(UsageError, match="profile-used"):
        prof.__enter__()


def test_there_is_no_diagnosis_of_what_never_ran() -> None:
    with pytest.raises(UsageError, match="profile-not-entered"):
        fp16doctor.profile().diagnosis  # noqa: B018


def test_importing_the_package_does_not_import_torch() -> None:
    program = (
        "import fp16doctor, sys; print('torch' in sys.modules, 'profile' in fp16doctor.__all__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True"]


def test_a_fault_in_the_callback_reaches_the_loop() -> None:
    def callback(diagnosis: Diagnosis) -> None:
        raise RuntimeError("stop the run")

    with pytest.raises(RuntimeError, match="stop the run"):
        infinite_at(3, fp16doctor.profile(on_trouble=callback))
