"""Eight planted faults, each a tiny fp16 model, and healthy runs that only look ill.

What must be said of each is the table that other tools were held against; the cure must be
verified where the fault is one of precision.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import log2

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.pipeline import ScanOptions, Session
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Finding, Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.prescription import Prescription, RecommendationStatus, RemedyKind, Verdict
from fp16doctor.schema.recording import Outcome, OutcomeKind
from fp16doctor.schema.spelling import power

HALF = torch.float16


def scanned(train: Callable[[], object]) -> Diagnosis:
    """Diagnose a training as ``fp16doctor scan`` does."""
    session = Session(ScanOptions(budget_s=20.0), __file__, ())
    with session:
        held = train()  # noqa: F841  # as a script does until its end
    return session.finish(Outcome(OutcomeKind.FINISHED))


def trained(
    model: nn.Module,
    loss_of: Callable[[nn.Module], Tensor],
    *,
    steps: int = 1,
    scale: float = 1.0,
    scaler: torch.amp.GradScaler | None = None,
    lr: float = 1e-3,
) -> object:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model)
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            continue
        (loss * scale if scale != 1 else loss).backward()
        if scale != 1:
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.div_(scale)
        optimizer.step()
    return model, optimizer


def demanding(found: Diagnosis) -> list[Finding]:
    return [f for f in found.findings if f.severity is not Severity.NOTE]


def verified(found: Diagnosis, kind: RemedyKind) -> list[Prescription]:
    return [
        p
        for p in found.prescriptions
        if p.remedy.kind is kind and p.verification.verdict is Verdict.VERIFIED
    ]


def recommended(found: Diagnosis) -> Prescription:
    """The one cure that is recommended; it was verified."""
    assert found.recommendation.status is RecommendationStatus.PRESCRIBED
    (best,) = found.recommendation.prescriptions
    chosen = found.prescriptions[best]
    assert chosen.verification.verdict is Verdict.VERIFIED
    return chosen


def told(finding: Finding) -> str:
    return f"{finding.what} {finding.cause} {finding.advice}"


class Chain(nn.Module):
    """``a``, something planted, ``b``."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.between = nn.Linear(8, 8), nn.Linear(8, 4), between

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.between(self.a(x)))


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 8, generator=generator)
    return x.half(), torch.randint(0, 4, (6,), generator=generator)


def classified(model: nn.Module) -> Tensor:
    x, y = batch()
    return F.cross_entropy(model(x).float(), y)


# -- the eight -----------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)
        nn.init.zeros_(self.a.weight)
        nn.init.constant_(self.a.bias, 40000.0)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        s = h + h.detach().abs().clamp(max=40000)
        return self.b(s / 1e4)


def test_res() -> None:
    found = scanned(lambda: trained(Residual().half(), classified))
    leading, *others = demanding(found)
    assert (leading.code, leading.severity) == ("FD101", Severity.ERROR)
    assert not others
    assert leading.site is not None
    assert leading.site.op == "aten.add.Tensor"
    assert leading.site.source is not None
    assert leading.site.source.text == "s = h + h.detach().abs().clamp(max=40000)"
    measured = max(e.measured for e in leading.evidence if e.limit is not None)
    assert measured / 65504 == pytest.approx(1.22, abs=0.01)
    assert "reaches 8e4, above the fp16 maximum 65504" in leading.what
    line = f"line:{leading.site.source.file}:{leading.site.source.line}"
    assert recommended(found).remedy.kind is RemedyKind.FP32_KEEP
    assert recommended(found).remedy.target == (line,)
    assert "bf16" in {p.remedy.value for p in verified(found, RemedyKind.DTYPE)}


class Attention(nn.Module):
    def __init__(self, *, empty_row: bool) -> None:
        super().__init__()
        self.q, self.k, self.b = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.empty_row = empty_row

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(6, 6, dtype=torch.bool).triu(1)
        if self.empty_row:
            mask[3] = True
        scores = self.q(x) @ self.k(x).T
        weights = torch.softmax(scores.masked_fill(mask, float("-inf")), -1)
        return self.b(weights @ x)


def test_mask() -> None:
    found = scanned(lambda: trained(Attention(empty_row=False).half(), classified))
    assert demanding(found) == []
    assert "masked_fill" not in "".join(map(told, found.findings))
    assert "healed-nonfinite" not in {f.name for f in found.findings}
    assert found.recommendation.status is RecommendationStatus.NONE_NEEDED


def test_all_mask() -> None:
    found = scanned(lambda: trained(Attention(empty_row=True).half(), classified))
    (leading,) = demanding(found)
    assert leading.name == "logic-nan"
    assert leading.site is not None
    assert leading.site.op == "aten._softmax.default"
    assert leading.site.element is not None
    assert leading.site.element[0] == 3
    assert "at batch element 3" in leading.what
    assert "no dtype, loss scale or keep-list changes it" in leading.cause
    assert "rows without any unmasked entry" in leading.advice
    assert found.recommendation.status is RecommendationStatus.NOT_PRECISION
    proved = [p for p in found.prescriptions if p.verification.verdict is Verdict.VERIFIED]
    assert [p.remedy.kind for p in proved] == [RemedyKind.CODE_FIX]
    assert "scores.masked_fill(mask, torch.finfo(scores.dtype).min)" in proved[0].remedy.change


def test_under() -> None:
    def loss(model: nn.Module) -> Tensor:
        return classified(model) * 1e-10

    found = scanned(lambda: trained(Chain(torch.tanh).half(), loss))
    leading = demanding(found)[0]
    assert "FD201" in (leading.code, *leading.subsumes)
    assert "100 %" in told(leading)
    (scale,) = verified(found, RemedyKind.LOSS_SCALE)
    assert recommended(found) is scale
    least = scale.remedy.value["low"]
    assert least >= 2.0**10
    assert log2(least).is_integer()
    assert scale.remedy.value["recommended"] >= least
    # GradScaler refuses the gradients of a model that is stored in fp16.
    assert f"({scale.remedy.value['recommended']} * loss).backward()" in scale.remedy.change


def test_bwd_ov() -> None:
    model = Chain(lambda x: x * 300.0).half()
    found = scanned(lambda: trained(model, classified, scale=2.0**13))
    leading = demanding(found)[0]
    assert leading.code == "FD104"
    assert leading.site is not None
    assert leading.site.phase is Phase.BACKWARD
    (scale,) = verified(found, RemedyKind.LOSS_SCALE)
    assert recommended(found) is scale
    too_high = int(log2(2.0**13 / scale.remedy.value["high"]))
    assert too_high > 0
    assert f"divide the loss scale, where there is one, by {power(too_high)}" in leading.advice
    assert "`torch.amp.GradScaler`, which lowers it by itself" in leading.advice


def test_bwd_ov_heals_under_a_scaler() -> None:
    def loss(model: nn.Module) -> Tensor:
        with torch.autocast("cpu", HALF):
            x, y = batch()
            return F.cross_entropy(model(x.float()).float(), y)

    def train() -> object:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        return trained(Chain(lambda x: x * 300.0), loss, steps=14, scaler=scaler, lr=1e-6)

    found = scanned(train)
    assert demanding(found) == []
    (note,) = [f for f in found.findings if f.code == "FD104"]
    assert "at loss scale 65536: the scale is too high by 2⁸" in note.what
    assert "GradScaler skipped the step and lowered the scale" in note.cause
    assert found.recommendation.status is RecommendationStatus.NONE_NEEDED


def test_inpl() -> None:
    def rectified(x: Tensor) -> Tensor:
        return F.relu(x, inplace=True)

    found = scanned(lambda: trained(Chain(rectified).half(), classified))
    assert demanding(found) == []
    assert found.replay.fidelity is not None
    assert found.replay.fidelity.bit_equal


def test_sqrt() -> None:
    """The gradient of sqrt is infinite at 0; relu's own gradient drops it there."""

    def healed(x: Tensor) -> Tensor:
        return torch.sqrt(torch.relu(x))

    found = scanned(lambda: trained(Chain(healed).half(), classified))
    assert demanding(found) == []
    assert found.recommendation.status is RecommendationStatus.NONE_NEEDED
    (note,) = [f for f in found.findings if f.name == "healed-nonfinite"]
    assert note.severity is Severity.NOTE
    assert "inf" in note.what
    assert note.site is not None
    assert (note.site.op, note.site.phase) == ("aten.div.Tensor", Phase.BACKWARD)
    assert note.site.source is not None
    assert note.site.source.text == "return torch.sqrt(torch.relu(x))"
    assert note.chain[-1].op == "aten.threshold_backward.default"
    assert note.reaches == ()
    assert found.prescriptions == ()


class Faint(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        small = self.a(x) * 2e-7
        return self.b(small)


def test_sub() -> None:
    found = scanned(lambda: trained(Faint().half(), classified, scale=2.0**12))
    leading, *others = demanding(found)
    assert (leading.code, others) == ("FD202", [])
    assert leading.site is not None
    assert leading.site.op == "aten.mul.Tensor"
    assert leading.site.source is not None
    assert leading.site.source.text == "small = self.a(x) * 2e-7"
    share = re.search(r"([\d.]+) % of its mass", leading.what)
    assert share is not None
    assert float(share[1]) > 90
    assert "2 of 10 bits behind the first are left" in leading.cause
    best = recommended(found)
    assert best.remedy.value == "bf16"
    # Its product alone in fp32 changes nothing: the next matrix product casts it down again.
    assert not verified(found, RemedyKind.FP32_KEEP)
    assert best.verification.after["gradient error"] < 0.01
    assert best.verification.before["gradient error"] > 0.1


# -- healthy runs that look ill ------------------------------------------------------------------


def quiet(found: Diagnosis) -> None:
    assert demanding(found) == []
    assert found.recommendation.status is RecommendationStatus.NONE_NEEDED
    assert found.warnings == ()


def test_large_values_in_bf16_are_healthy() -> None:
    def loss(model: nn.Module) -> Tensor:
        x, y = batch()
        return F.cross_entropy(model(x.bfloat16()).float(), y)

    def large(x: Tensor) -> Tensor:
        return x * 1e5 * 1e-5

    model = Chain(large).bfloat16()
    quiet(scanned(lambda: trained(model, loss, lr=1.0)))


def test_small_gradients_in_bf16_are_healthy() -> None:
    def loss(model: nn.Module) -> Tensor:
        x, y = batch()
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(x.float()).float(), y) * 1e-6

    quiet(scanned(lambda: trained(Chain(torch.tanh), loss, steps=3, lr=1e3)))


def test_warm_up_of_a_scaler_is_healthy() -> None:
    def loss(model: nn.Module) -> Tensor:
        x, y = batch()
        with torch.autocast("cpu", HALF):
            return F.cross_entropy(model(x.float()).float() * 30, y)

    def train() -> object:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        return trained(Chain(torch.tanh), loss, steps=14, scaler=scaler, lr=1e-4)

    quiet(scanned(train))
