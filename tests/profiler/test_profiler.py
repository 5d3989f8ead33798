"""``fp16doctor.profile``: the loop runs as without it, and what it did is known afterwards."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from profiled import Loop, ranges
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

import fp16doctor
from fp16doctor.schema.codec import from_json, to_json
from fp16doctor.schema.recording import OutcomeKind


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


def test_importing_the_package_does_not_import_torch() -> None:
    program = (
        "import fp16doctor, sys; print('torch' in sys.modules, 'profile' in fp16doctor.__all__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True"]


def test_in_a_notebook_the_kernel_is_not_taken_for_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = tmp_path / "kernel_launcher.py"
    kernel.write_text("secret = 1\n")
    monkeypatch.setattr(sys, "argv", [str(kernel), "-f", "connection.json"])
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    loop = Loop()
    with fp16doctor.profile() as prof:
        loop.step()
    run = prof.diagnosis.run
    assert (run.script, run.argv) == ("interactive session", ())
