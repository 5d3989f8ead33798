"""The code to paste is no longer than the recorded step asks for, and each form does the trial."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from curing import AUTOCAST, PURE, Job, far
from deep import Deep, classified
from making import event, observed, plain, trace
from torch import Tensor, nn

from fp16doctor.diagnose.engine import diagnose
from fp16doctor.prescribe.paste import pasted
from fp16doctor.prescribe.plan import plan
from fp16doctor.replay.bare_products import casting_modules
from fp16doctor.replay.trial import run_trial
from fp16doctor.schema.policy import KeepRule, PrecisionPolicy
from fp16doctor.schema.recording import Outcome, OutcomeKind, RunInfo
from fp16doctor.schema.tape import Tape


def code_of(job: Job, names: tuple[str, ...], outputs: str | None = None) -> str:
    """Return the code for modules, after it was run and did what the trial does."""
    (tape,) = job.tapes()
    targets = tuple(f"module:{n}" for n in names)
    code = pasted(targets, "cpu", tape, outputs)

    def patched() -> nn.Module:
        model = job.model().to(job.dtype if job.form == PURE else torch.float32)
        exec(code, {"torch": torch, "model": model})
        return model

    cast, form = job.cast, AUTOCAST if job.form == AUTOCAST else "as it is"
    real = job.but(model=patched, form=form, loss=lambda m, _: job.loss(m, cast)).real()
    rules = tuple(map(KeepRule, targets))
    trial = run_trial(tape, PrecisionPolicy("keep", keep=rules, casts_back=outputs is not None))
    assert trial.finite
    assert trial.loss == pytest.approx(real.losses[0], rel=1e-5)
    assert far(trial.gradients, real.gradients) <= torch.finfo(job.dtype).eps
    return code


def deep(form: str = AUTOCAST) -> Job:
    return Job(lambda: Deep(1, 1e6, 1), classified, form)


def test_one_module_that_takes_a_tensor_is_six_lines() -> None:
    assert code_of(deep(), ("blocks.1",)).splitlines() == [
        "module = model.get_submodule('blocks.1')",
        "forward = module.forward",
        "def in_fp32(x):",
        "    with torch.autocast('cpu', enabled=False):",
        "        return forward(x.float())",
        "module.forward = in_fp32",
    ]


def test_several_share_one_function() -> None:
    code = code_of(deep(), ("blocks.1", "head"))
    assert "for name in ['blocks.1', 'head']:" in code
    assert len(code.splitlines()) == 9


def test_modules_that_go_on_in_16_bits_are_named() -> None:
    """Only those that get fp32: what is kept hands it to the sum, the sum to the next ones."""
    job = deep(PURE)
    (tape,) = job.tapes()
    rules = (KeepRule("module:blocks.1"),)
    assert casting_modules(tape, rules) == ("blocks.2.down", "head")
    code = code_of(job, ("blocks.1",))
    assert "forward = module.float().forward" in code
    assert "for name in ['blocks.2.down', 'head']:" in code
    assert len(code.splitlines()) == 9


def test_nobody_goes_on_behind_the_last_one() -> None:
    job = Job(lambda: Deep(1, 1), classified, PURE)
    assert len(code_of(job, ("head",)).splitlines()) == 6


def test_many_that_go_on_are_all_that_can() -> None:
    job = Job(lambda: Deep(*[1.0] * 6), classified, PURE)
    code = code_of(job, ("inp",))
    assert "for module in model.modules():" in code


def test_results_cast_back_ask_nobody_to_cast() -> None:
    code = code_of(Job(lambda: Deep(1, 1), classified, PURE), ("blocks.0",), "float16")
    assert "return forward(x.float()).to(torch.float16)" in code
    assert len(code.splitlines()) == 6


class Mixed(nn.Module):
    """Called as ``how`` says: tensors by place and by name, a number, a nest."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.inp, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.inner, self.how = Inner(), how

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        mask = torch.ones(8, dtype=torch.bool)
        if self.how == "flat":
            return self.head(self.inner(h, mask, gain=2.0, more=h))
        return self.head(self.inner((h, mask), gain=2.0, more={"h": h}))


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, h: Any, mask: Any = None, *, gain: float, more: Any) -> Tensor:
        h, mask = h if isinstance(h, tuple) else (h, mask)
        more = more["h"] if isinstance(more, dict) else more
        return torch.where(mask, self.lin(h) * gain, 0) + torch.exp(more)


@pytest.mark.parametrize("form", [AUTOCAST, PURE])
@pytest.mark.parametrize(("how", "lines"), [("flat", 9), ("nest", 13)])
def test_what_else_is_given_is_cast_where_it_is(form: str, how: str, lines: int) -> None:
    code = code_of(Job(lambda: Mixed(how), classified, form), ("inner",))
    assert len(code.splitlines()) == lines + 3 * (form == PURE)


def test_without_a_record_every_case_is_covered() -> None:
    (tape,) = deep().tapes()
    known = pasted(("module:blocks.1",), "cpu", tape)
    unknown = pasted(("module:blocks.1",), "cpu")
    assert len(unknown.splitlines()) > 2 * len(known.splitlines())


# -- how modules were called -----------------------------------------------------------------------


def tape_of(model: Callable[[], nn.Module]) -> Tape:
    (tape,) = Job(model, classified).tapes()
    return tape


def test_the_form_of_a_call_is_on_the_tape() -> None:
    tape = tape_of(lambda: Mixed("nest"))
    assert {n: c.takes for n, c in tape.calls.items()} == {
        "": "tensor",
        "inp": "tensor",
        "head": "tensor",
        "inner": "nest",
        "inner.lin": "tensor",
    }
    assert tape_of(lambda: Mixed("flat")).calls["inner"].takes == "flat"


def test_of_two_models_with_one_name_the_wider_form_counts() -> None:
    class Pair(nn.Module):
        def forward(self, x: Any) -> Tensor:
            return x[0] * 1.0

    pairs = [nn.Sequential(Pair())]  # no variable holds it that its paths could begin with

    def loss(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
        x = torch.randn(4, 4)
        return pairs[0]((model(cast(x)),)).float().mean()  # type: ignore[no-any-return]

    (tape,) = Job(lambda: nn.Sequential(nn.Linear(4, 4)), loss).tapes()
    assert tape.calls["0"].takes == "nest"


# -- where no step was kept ------------------------------------------------------------------------


def run_of(device: str, *stored: str) -> RunInfo:
    outcome = Outcome(OutcomeKind.FINISHED)
    parameters = tuple((name, 9) for name in stored)
    return RunInfo("t.py", (), outcome, "", "", "", device, "", 0.0, parameters_by_dtype=parameters)


@pytest.mark.parametrize(
    ("run", "device"),
    [
        (run_of("cpu", "float32"), "cpu"),
        (run_of("cpu, simulating cuda", "float32"), "cuda"),
        (run_of("cuda:0", "float16"), "cuda"),
        (None, "cuda"),
    ],
)
def test_the_run_tells_the_device_and_what_is_stored(run: RunInfo | None, device: str) -> None:
    findings = diagnose(observed(trace(event(module_path="head")), steps=plain(1)))[0]
    found, _ = plan(findings, None, run=run)
    changes = [p.remedy.change for p in found if p.remedy.change]
    assert changes
    assert all(f"autocast({device!r}" in c for c in changes)
    (code,) = [c for c in changes if "get_submodule" in c]
    stores_half = run is None or "float16" in dict(run.parameters_by_dtype)
    assert ("in_own_format" in code) is stores_half
    assert ("module.float()" in code) is stores_half
