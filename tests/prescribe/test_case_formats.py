"""Which 16-bit format a fault is a matter of, also where it shows in fp32."""

from __future__ import annotations

from collections.abc import Callable

import torch
from curing import AUTOCAST, Job
from making import observed, plain
from torch import Tensor, nn

from fp16doctor.diagnose.engine import diagnose
from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.plan import plan
from fp16doctor.prescribe.remedies.change_dtype import propose
from fp16doctor.replay.examine import examine
from fp16doctor.schema.finding import Finding
from fp16doctor.schema.prescription import Verdict


class Chain(nn.Module):
    """A probability that shrinks with each product; its logarithm is taken in fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.move = nn.Linear(4, 4, bias=False)
        nn.init.constant_(self.move.weight, 1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return self.move(self.move(self.move(x)))


def loss(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    return -model(cast(torch.rand(5, 4))).float().log().mean()


def found(dtype: torch.dtype) -> tuple[tuple[Finding, ...], Bench]:
    tapes = tuple(Job(Chain, loss, AUTOCAST, dtype=dtype).tapes())
    seen = observed(examine(tapes[0], with_reference=True), steps=plain(1))
    return tuple(diagnose(seen)[0]), Bench(tapes, 60)


def test_a_logarithm_in_fp32_of_what_fp16_made_zero_is_tried_in_bf16() -> None:
    findings, bench = found(torch.float16)
    case = Case(findings, bench)
    (first,) = (f for _, f in case.of_precision)
    assert first.code == "FD111"
    assert {e.format for e in first.evidence} <= {None, "fp32"}
    assert case.formats == {"fp16"}
    verified = {p.remedy.value for p in propose(case) if p.verification.verdict is Verdict.VERIFIED}
    assert verified == {"bf16", "fp32"}


def test_nothing_is_known_without_a_step() -> None:
    findings, _ = found(torch.float16)
    assert not Case(findings, None).formats


def test_a_step_in_bf16_is_not_tried_in_bf16() -> None:
    findings, bench = found(torch.bfloat16)
    assert not [p for p in plan(findings, bench)[0] if p.remedy.value == "bf16"]
