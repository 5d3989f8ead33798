"""Optimizer state in fp16: a finite step is not enough; fp32 parameters make the one meant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from curing import AUTOCAST, PURE, Job
from making import event, observed, plain, trace
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.diagnose.engine import diagnose
from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.plan import plan
from fp16doctor.prescribe.remedies import held_constant, master_weights, storage
from fp16doctor.schema.finding import Evidence, Fault, Finding, Severity
from fp16doctor.schema.location import OpSite, Phase, SourceLine
from fp16doctor.schema.prescription import Verdict
from fp16doctor.schema.tape import Tape

STEP = SourceLine("train.py", 9, "<module>", "optimizer.step()")
LOST = Finding(
    "FD203", "optimizer-state-underflow", Severity.WARNING, Fault.UNDERFLOW, "w", "c",
    OpSite(1, Phase.OPTIMIZER, "aten.addcmul_", 9, source=STEP),
    evidence=(Evidence("elements that became zero", 9.0, "replayed:fp32", format="fp16"),),
)  # fmt: skip
WEIGHTS = replace(LOST, code="FD301", name="lost-weight-updates", fault=Fault.LOST_UPDATE)


class Words(nn.Module):
    """Some rows of the table are never looked up: their gradient is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(12, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table(x).mean(1))


def loss(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    x = torch.randint(0, 9, (8, 3))
    return 0.03 * F.mse_loss(model(x).float(), 0.1 * torch.randn(8, 3))


def tapes(
    form: str = PURE, dtype: torch.dtype = torch.float16, **options: float
) -> tuple[Tape, ...]:
    job = Job(Words, loss, form, dtype, optimizer=torch.optim.Adam,
              options={"lr": 1e-3, **options}, steps=6)  # fmt: skip
    return tuple(job.tapes())


def of_nan(taped: tuple[Tape, ...]) -> Case:
    """The fault of the first step: a division by an eps that is 0."""
    call = next(c for c in reversed(taped[0].ops) if c.op.startswith("aten.addcdiv_"))
    born = event(index=call.index, op=call.op, phase=Phase.OPTIMIZER, module_path="table")
    findings = diagnose(observed(trace(born), steps=plain(1)))[0]
    site = replace(findings[0].site or LOST.site, step=0, source=STEP)  # type: ignore[type-var]
    found = (replace(findings[0], site=site), *findings[1:])
    return Case(found, Bench(taped[:1], 60, window=taped))


def test_an_eps_under_which_the_second_moment_is_lost_is_refuted_with_its_numbers() -> None:
    (cure,) = held_constant.propose(of_nan(tapes()))
    proof = cure.verification
    assert proof.verdict is Verdict.REFUTED
    assert proof.after["non-finite elements"] == 0
    assert proof.after["realised fraction"] > 1.1
    assert proof.reason.startswith("the updates realise ")
    assert "second moment is 0 in fp16 and not in fp32 for" in proof.reason
    assert "divided by eps alone" in proof.reason


def test_fp32_parameters_make_the_step_of_fp32() -> None:
    case = of_nan(tapes())
    (cure,) = master_weights.propose(case)
    assert cure.verification.verdict is Verdict.VERIFIED
    assert cure.verification.after["realised fraction"] == pytest.approx(1, abs=0.02)
    assert "loss after 6 steps" in cure.verification.after
    assert "dtype=torch.float16" in cure.remedy.change  # the run's own: that is what was tried
    chosen = plan(case.findings, case.bench)
    (first,) = (chosen[0][i] for i in chosen[1].prescriptions)
    assert first.remedy == replace(cure.remedy, forms=first.remedy.forms)


def test_state_that_underflows_in_a_finite_run() -> None:
    """The run meets all criteria of a step; its optimizer's state does not."""
    taped = tapes(eps=1e-4)
    case = Case((LOST, WEIGHTS), Bench(taped[1:3], 60, window=taped))
    (cure,) = master_weights.propose(case)
    assert cure.verification.verdict is Verdict.VERIFIED
    assert cure.treats == (0, 1)
    assert not list(storage.propose(case))  # the same cure, with a lesser proof


@pytest.mark.parametrize(
    ("form", "dtype", "finding"),
    [
        (AUTOCAST, torch.float16, LOST),  # nothing of it is stored in 16 bits
        (PURE, torch.float16, WEIGHTS),  # storage alone
        (PURE, torch.float16, replace(LOST, site=None)),
        (
            PURE,
            torch.float16,  # an average of the script's own: autocast is no cure of that
            replace(LOST, site=replace(LOST.site, source=replace(STEP, text="ema.lerp_(w, 0.1)"))),  # type: ignore[type-var]
        ),
    ],
)
def test_nothing_for_anything_else(form: str, dtype: torch.dtype, finding: Finding) -> None:
    assert not list(master_weights.propose(Case((finding,), Bench(tapes(form, dtype), 60))))
    assert not list(master_weights.propose(Case((finding,), None)))


def test_state_that_takes_no_updates_is_no_tensor_of_the_script() -> None:
    """What `optimizer.step()` writes is not made by that line: the parameters are to be in fp32."""
    taped = tapes(eps=1e-4)
    state = replace(LOST, code="FD302", name="lost-state-updates", fault=Fault.LOST_UPDATE)
    case = Case((state,), Bench(taped[1:3], 60, window=taped))
    (cure,) = master_weights.propose(case)
    assert cure.verification.verdict is Verdict.VERIFIED
    assert not list(storage.propose(case))
