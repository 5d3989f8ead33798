"""Cures of values that go on rising: the proof says that they only move the limit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from curing import AUTOCAST, Job
from torch import Tensor, nn

from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.rising import with_rises
from fp16doctor.replay.heights import heights
from fp16doctor.schema.finding import RISE, Evidence, Fault, Finding, Severity
from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.policy import FP32
from fp16doctor.schema.prescription import (
    Prescription,
    Remedy,
    RemedyKind,
    Verdict,
    Verification,
)
from fp16doctor.schema.tape import Tape

PROOF = Verification(Verdict.VERIFIED, after={"gradient error": 0.1, "loss after 8 steps": -9e4})


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))


def unbounded(net: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    """Lower without end: the score itself is the loss, and begins below 0."""
    return net(torch.ones(8, 4) + 0.01 * torch.randn(8, 4)).mean()


def bounded(net: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    return (net(torch.randn(8, 4)) - 1).square().mean()


def tapes(loss: Callable[..., Tensor], lr: float = 0.05) -> tuple[Tape, ...]:
    return tuple(Job(model, loss, AUTOCAST, torch.bfloat16, options={"lr": lr}, steps=8).tapes())


def finding(taped: tuple[Tape, ...], *, rises: bool = True) -> Finding:
    call = [c for c in taped[0].ops if c.op == "aten.addmm.default"][1]
    trend = (Evidence(RISE, 1.5, "recorded"),) if rises else ()
    return Finding("FD101", "activation-overflow", Severity.ERROR, Fault.OVERFLOW, "w", "c",
                   call.site, evidence=trend)  # fmt: skip


def told(
    taped: tuple[Tape, ...], kind: RemedyKind = RemedyKind.DTYPE, **case: bool
) -> Verification:
    cure = Prescription(Remedy(kind, "train in bf16", value="bf16"), (0,), PROOF)
    bench = Bench(taped[:1], 60, window=taped)
    (found,) = with_rises(Case((finding(taped, **case),), bench), (cure,))
    return found.verification


def test_the_amax_of_a_place_over_consecutive_steps() -> None:
    taped = tapes(unbounded)
    site = finding(taped).site
    assert isinstance(site, OpSite)
    found = heights(taped, FP32, site)
    assert [step for step, _ in found] == list(range(8))
    values = [amax for _, amax in found]
    assert values == sorted(values)
    assert site.phase is Phase.FORWARD


@pytest.mark.parametrize("kind", [RemedyKind.DTYPE, RemedyKind.FP32_KEEP])
def test_values_that_rise_in_fp32_as_well(kind: RemedyKind) -> None:
    proof = told(tapes(unbounded), kind)
    assert proof.verdict is Verdict.VERIFIED
    assert proof.reason.startswith("the amax of `1` goes on growing in fp32 too, ")
    assert " in step 0 and " in proof.reason
    assert "(1.5 binades per 100 steps before): more range only moves" in proof.reason
    assert proof.after == {"gradient error": 0.1}  # a loss that runs away is no merit


def test_values_that_do_not_rise_there() -> None:
    """The recorded rise is told; that it goes on is not."""
    words = "the amax of `1` rose by 1.5 binades per 100 steps up to there"
    assert told(tapes(bounded, lr=1e-4)).reason == f"{words}: more range only moves the limit"


def test_nothing_is_added_where_nothing_rose_or_no_range_is_given() -> None:
    taped = tapes(bounded, lr=1e-4)
    assert told(taped, rises=False) == PROOF
    assert told(taped, RemedyKind.LOSS_SCALE) == PROOF
