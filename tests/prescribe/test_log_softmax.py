"""A softmax in front of a logarithm is tried as log_softmax, and told as the script's own lines."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from curing import AUTOCAST, PURE, Job, far
from making import event, observed, plain, trace
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.diagnose.engine import diagnose
from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.plan import plan
from fp16doctor.prescribe.remedies.log_softmax import propose
from fp16doctor.replay.joined_softmax import joined, softmaxes_then_logs
from fp16doctor.replay.op_traits import base
from fp16doctor.replay.trial import run_trial
from fp16doctor.schema.policy import AS_RUN, FP32
from fp16doctor.schema.prescription import Prescription, RemedyKind, Verdict
from fp16doctor.schema.tape import Tape

GAIN = 25.0


class Classes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(self.net(x) * GAIN, dim=-1)


class Logs(Classes):
    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(self.net(x) * GAIN, dim=-1)


def whole(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    prob = model(cast(torch.randn(6, 4)))
    return F.nll_loss(torch.log(prob), torch.arange(6) % 3)


def chosen(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    prob = model(cast(torch.randn(6, 4)))
    return -prob.gather(-1, (torch.arange(6) % 3)[:, None]).log().mean()


def whole_of_logs(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    return F.nll_loss(model(cast(torch.randn(6, 4))), torch.arange(6) % 3)


def chosen_of_logs(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    logs = model(cast(torch.randn(6, 4)))
    return -logs.gather(-1, (torch.arange(6) % 3)[:, None]).mean()


def entropy(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    prob = model(cast(torch.randn(6, 4)))
    return -(prob * torch.log(prob)).sum(-1).mean()


def with_eps(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    return -torch.log(model(cast(torch.randn(6, 4))) + 1e-6).mean()


def tape_of(loss: Callable[..., Tensor], form: str = AUTOCAST) -> Tape:
    (tape,) = Job(Classes, loss, form, scale=8.0).tapes()
    return tape


@pytest.mark.parametrize("form", [AUTOCAST, PURE])
@pytest.mark.parametrize(("loss", "edited"), [(whole, whole_of_logs), (chosen, chosen_of_logs)])
def test_the_edited_step_is_that_of_the_edited_script(
    loss: Callable[..., Tensor], edited: Callable[..., Tensor], form: str
) -> None:
    tape = tape_of(loss, form)
    assert not run_trial(tape, AS_RUN).finite
    (pair,) = softmaxes_then_logs(tape)
    changed = joined(tape, pair.softmax)
    assert changed is not None
    trial = run_trial(changed, AS_RUN)
    real = Job(Logs, edited, form, scale=8.0).real()
    assert trial.finite
    assert trial.loss == pytest.approx(8 * real.losses[0], rel=2e-3)
    assert far(trial.gradients, real.gradients) <= 2 * torch.finfo(torch.float16).eps


def test_in_fp32_nothing_is_changed() -> None:
    tape = tape_of(chosen)
    (pair,) = softmaxes_then_logs(tape)
    changed = joined(tape, pair.softmax)
    assert changed is not None
    wide, meant = run_trial(changed, FP32), run_trial(tape, FP32)
    assert wide.loss == pytest.approx(meant.loss, rel=1e-5)
    assert far(wide.gradients, meant.gradients) <= 1e-5


@pytest.mark.parametrize("loss", [entropy, with_eps])
def test_a_probability_that_is_needed_itself_stays(loss: Callable[..., Tensor]) -> None:
    assert softmaxes_then_logs(tape_of(loss)) == ()


def cures(loss: Callable[..., Tensor]) -> tuple[Case, list[Prescription]]:
    tape = tape_of(loss)
    born = next(c for c in tape.ops if base(c.op) == "log")
    seen = trace(event(index=born.index, op=born.op, source=born.site.source))
    findings = diagnose(observed(seen, steps=plain(1)))[0]
    case = Case(findings, Bench((tape,), 60))
    return case, list(propose(case))


def line_with(text: str) -> int:
    lines = inspect.getsource(inspect.getmodule(Classes)).splitlines()  # type: ignore[arg-type]
    return next(i for i, line in enumerate(lines, 1) if line.strip() == text)


def test_both_lines_are_edited() -> None:
    _, (cure,) = cures(whole)
    assert cure.verification.verdict is Verdict.VERIFIED
    assert cure.remedy.kind is RemedyKind.CODE_FIX
    made = "return F.softmax(self.net(x) * GAIN, dim=-1)"
    taken = "return F.nll_loss(torch.log(prob), torch.arange(6) % 3)"
    here = Path(__file__)
    assert cure.remedy.change.splitlines() == [
        f"# {here}:{line_with(made)}",
        f"- {made}",
        "+ return F.log_softmax(self.net(x) * GAIN, dim=-1)",
        f"# {here}:{line_with(taken)}",
        f"- {taken}",
        "+ return F.nll_loss(prob, torch.arange(6) % 3)",
    ]
    assert cure.remedy.title.startswith("use `F.log_softmax(self.net(x) * GAIN, dim=-1)` at ")
    assert "and leave out the `log` at" in cure.remedy.title


def test_it_comes_before_another_format() -> None:
    """The edit takes nothing away: bf16 would cost every other op its bits."""
    case, _ = cures(whole)
    found, answer = plan(case.findings, case.bench)
    (place,) = answer.prescriptions
    assert found[place].remedy.kind is RemedyKind.CODE_FIX
    assert found[place].verification.verdict is Verdict.VERIFIED
