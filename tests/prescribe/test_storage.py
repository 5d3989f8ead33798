"""Tensors stored in 16 bits: what fp32 storage makes of their updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from curing import AUTOCAST, PURE, Job
from torch import Tensor, nn

from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.remedies import change_dtype
from fp16doctor.prescribe.remedies.storage import propose
from fp16doctor.prescribe.stored import realised_in_fp32, trains_half_parameters
from fp16doctor.schema.finding import Evidence, Fault, Finding, Severity
from fp16doctor.schema.location import OpSite, Phase, SourceLine
from fp16doctor.schema.prescription import Verdict
from fp16doctor.schema.tape import Tape

LOST = Finding(
    "FD301", "lost-weight-updates", Severity.ERROR, Fault.LOST_UPDATE, "w", "c", None,
    evidence=(Evidence("realised fraction of the updates", 0.12, "replayed:fp32"),),
)  # fmt: skip


def mean(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    return model(cast(torch.randn(8, 4))).float().pow(2).mean()


def tapes(form: str = PURE, lr: float = 1e-5) -> tuple[Tape, ...]:
    job = Job(lambda: nn.Linear(4, 4), mean, form, torch.bfloat16, optimizer=torch.optim.AdamW,
              options={"lr": lr}, steps=3)  # fmt: skip
    return tuple(job.tapes())


def test_fp32_takes_updates_that_bf16_loses() -> None:
    after, steps = realised_in_fp32(tapes(), parameters=True)
    assert after is not None
    assert after > 0.99
    assert steps == (0, 1, 2)


def test_before_and_after() -> None:
    (cure,) = propose(Case((LOST,), Bench(tapes(), 60)))
    assert cure.verification.verdict is Verdict.VERIFIED
    assert cure.verification.before == {"realised fraction": 0.12}
    assert cure.verification.after["realised fraction"] > 0.99
    assert cure.verification.steps == (0, 1, 2)


def test_updates_that_fp32_loses_as_well_are_refuted() -> None:
    (cure,) = propose(Case((LOST,), Bench(tapes(lr=1e-11), 60)))
    assert cure.verification.verdict is Verdict.REFUTED
    assert cure.verification.reason == "fp32 loses the updates as well"


def test_weights_in_fp32_hold_no_update_to_speak_of() -> None:
    assert realised_in_fp32(tapes(AUTOCAST), parameters=True) == (None, (0, 1, 2))
    (cure,) = propose(Case((LOST,), Bench(tapes(AUTOCAST), 60)))
    assert cure.verification.verdict is Verdict.NOT_VERIFIED
    (cure,) = propose(Case((LOST,), None))
    assert cure.verification.reason == "no step was kept to try it on"


@pytest.mark.parametrize("code", ["FD302", "FD303"])
def test_a_tensor_beside_the_weights_is_named_by_the_line_that_writes_it(code: str) -> None:
    site = OpSite(
        1, Phase.OPTIMIZER, "aten.mul_.Tensor", 9, source=SourceLine("t.py", 12, "f", "x")
    )
    (cure,) = propose(Case((replace(LOST, code=code, site=site),), None))
    assert cure.remedy.title == "keep the tensor written at `t.py:12` in fp32"
    assert cure.remedy.change.startswith(
        "# t.py:12: create the tensor"
    )  # a comment: no user's name
    (cure,) = propose(Case((replace(LOST, code=code),), None))
    assert cure.remedy.title == "keep the tensor in fp32"
    assert cure.remedy.change.startswith("# create the tensor")
    (cure,) = propose(Case((LOST,), None))
    assert cure.remedy.change.startswith("model = model.float()")


def test_an_average_stored_in_half() -> None:
    def after(model: Any, ema: Any) -> Any:
        weights = [p.detach() for p in model.parameters()]
        if ema is None:
            return [w.clone().half() for w in weights]
        torch._foreach_lerp_(ema, [w.half() for w in weights], 1e-4)
        return ema

    job = Job(lambda: nn.Linear(4, 4), mean, steps=4, after=after, options={"lr": 0.1})
    realised, steps = realised_in_fp32(tuple(job.tapes()), parameters=False)
    assert realised is not None
    assert realised > 0.9
    assert len(steps) == 4


def test_half_parameters_are_those_that_are_trained() -> None:
    assert all(trains_half_parameters(t) for t in tapes())
    assert not any(trains_half_parameters(t) for t in tapes(AUTOCAST))


@pytest.mark.parametrize(("form", "cures"), [(AUTOCAST, [("storage", "fp32")]), (PURE, None)])
def test_what_overflows_beside_fp32_weights_is_stored_in_fp32(
    form: str, cures: list[tuple[str, str]] | None
) -> None:
    """Autocast cannot reach an average that is stored in fp16: the tensor itself is told."""
    site = OpSite(
        1, Phase.OPTIMIZER, "aten.mul_.Tensor", 9, source=SourceLine("t.py", 12, "f", "x")
    )
    finding = Finding(
        "FD104", "gradient-overflow", Severity.ERROR, Fault.OVERFLOW, "w", "c", site,
        evidence=(Evidence("amax", 1e9, "replayed:fp32", format="fp16"),),
    )  # fmt: skip
    found = list(change_dtype.propose(Case((finding,), Bench(tapes(form), 60))))
    if cures is not None:
        assert [(p.remedy.kind.value, p.remedy.value) for p in found] == cures
        assert "t.py:12" in found[0].remedy.change
    else:
        assert [p.remedy.kind.value for p in found] == ["dtype", "dtype"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("t = t.to(torch.bfloat16)", "`torch.float32` in place of `torch.bfloat16`"),
        ("t = t.half() * 2", "`.float()` in place of `.half()`"),
        ("t = self.net(t)", ""),
    ],
)
def test_fp32_names_the_cast_that_the_line_itself_writes(text: str, said: str) -> None:
    source = SourceLine("train.py", 7, "forward", text)
    site = OpSite(0, Phase.FORWARD, "aten._to_copy.default", 0, source=source)
    coarse = Finding(
        "FD305", "inexact-integers", Severity.ERROR, Fault.PRECISION_LOSS, "w", "c", site
    )
    cures = change_dtype.propose(Case((coarse,), Bench(tapes(), 60)))
    (fp32,) = (c for c in cures if c.remedy.value == "fp32")
    assert fp32.remedy.change.startswith("with torch.autocast('cpu', enabled=False)")
    assert ("# and at train.py:7 " + said in fp32.remedy.change) == bool(said)
