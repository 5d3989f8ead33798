"""One recorded step under other policies: the numbers, the verdict, what cannot be asked."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from bundling import bundles_of
from curing import Job
from torch import Tensor, nn

from fp16doctor.errors import UsageError
from fp16doctor.pipeline import what_if
from fp16doctor.prescribe.bench import Bench
from fp16doctor.replay.outcome import as_recorded
from fp16doctor.schema.bundle import Bundle, Origin
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.policy import AS_RUN, PrecisionPolicy
from fp16doctor.schema.prescription import Verdict
from fp16doctor.schema.what_if import Question


class Scaled(nn.Module):
    """A product that leaves fp16's range, and is brought back behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.hot, self.out = nn.Linear(8, 8), nn.Linear(8, 2)
        nn.init.constant_(self.hot.weight, 150.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.hot(x) * 1e-4)


def loss_of(model: nn.Module, cast: object) -> Tensor:
    torch.manual_seed(1)
    return model(torch.rand(4, 8) * 100 + 50).float().square().mean()


def hot(**changes: object) -> Bundle:
    job = Job(Scaled, loss_of).but(**changes)
    return bundles_of(job.real)[0]


@pytest.fixture(scope="module")
def overflowing() -> Bundle:
    return hot()


def test_without_a_change_the_run_is_told(overflowing: Bundle) -> None:
    answer = what_if(overflowing, Question())
    assert answer.repetition.bit_equal
    assert answer.repetition.compared > 0
    assert answer.verification.before["non-finite elements"] > 0
    assert answer.verification.after == {}
    assert answer.reference["non-finite elements"] == 0
    assert [s.module_path for s in answer.births_before] == ["hot"]
    assert answer.verification.verdict is Verdict.NOT_VERIFIED


def test_a_cure_is_verified_and_its_loss_is_that_of_the_real_run(overflowing: Bundle) -> None:
    answer = what_if(overflowing, Question(keep=("module:hot",)))
    assert answer.verification.verdict is Verdict.VERIFIED
    assert answer.verification.after["non-finite elements"] == 0
    assert answer.births_after == ()
    real = Job(Scaled, loss_of).real(keep=["hot"]).losses[0]
    assert answer.verification.after["loss"] == pytest.approx(real, rel=1e-6)


def test_bf16_is_another_format_for_the_same_step(overflowing: Bundle) -> None:
    answer = what_if(overflowing, Question(dtype="bf16"))
    real = Job(Scaled, loss_of, dtype=torch.bfloat16).real().losses[0]
    assert answer.verification.after["loss"] == pytest.approx(real, rel=1e-6)
    assert answer.verification.verdict is Verdict.VERIFIED


def test_a_change_that_does_not_help_is_refuted(overflowing: Bundle) -> None:
    answer = what_if(overflowing, Question(keep=("module:out",)))
    assert answer.verification.verdict is Verdict.REFUTED
    assert answer.verification.reason.startswith("non-finite values in")
    assert [s.module_path for s in answer.births_after] == ["hot"]


def test_a_loss_scale(overflowing: Bundle) -> None:
    bundle = hot(scaler=2.0**10, model=lambda: nn.Sequential(nn.Linear(8, 2)))
    answer = what_if(bundle, Question(loss_scale=2.0**40))
    assert answer.verification.before["loss scale"] == 2.0**10
    assert answer.verification.after["loss scale"] == 2.0**40
    assert answer.verification.verdict is Verdict.REFUTED
    assert "gradients" in answer.verification.reason
    assert answer.verification.after["loss"] == answer.verification.before["loss"]


def test_a_change_is_tried_at_the_loss_scale_where_a_scaler_would_settle() -> None:
    bundle = hot(scaler=2.0**30)
    answer = what_if(bundle, Question(keep=("module:hot",)))
    found = answer.verification
    assert found.verdict is Verdict.VERIFIED
    assert found.before["loss scale"] == 2.0**30
    assert found.after["loss scale"] < 2.0**30
    assert found.after["non-finite elements"] == 0
    assert found.reason.startswith(f"at the loss scale {found.after['loss scale']:g}, to which")
    asked = what_if(bundle, Question(keep=("module:hot",), loss_scale=2.0**30))
    assert asked.verification.verdict is Verdict.REFUTED  # a scale that was asked for stays


def sound(**changes: object) -> Bundle:
    """A step whose gradients differ from fp32's by rounding alone."""
    return hot(model=lambda: nn.Sequential(nn.Linear(8, 2)), **changes)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_where_the_step_does_not_show_its_finding_the_scan_has_the_verdict(dtype: str) -> None:
    bundle = sound()
    finding = Finding(
        "FD301", "lost-weight-updates", Severity.ERROR, Fault.LOST_UPDATE, "what", "cause", None
    )
    told = replace(bundle, origin=replace(bundle.origin, finding=finding))
    found = what_if(told, Question(dtype=dtype)).verification
    assert found.verdict is Verdict.NOT_VERIFIED
    shown = "this step alone does not show FD301 lost-weight-updates: the run's gradient error of"
    assert found.reason.startswith(shown)
    assert "the verdict on its cures is that of the scan" in found.reason


def test_the_run_is_held_against_the_rounding_of_its_own_format() -> None:
    """Not of the format that is asked for: bf16's is eight times that of fp16."""
    asked: list[str] = []

    def floor(bench: Bench, place: int, policy: PrecisionPolicy) -> float:
        asked.append(policy.name)
        return 1e-9 if policy == AS_RUN else 1.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bench, "floor", floor)
        reason = what_if(sound(), Question(dtype="bf16")).verification.reason
    assert {"as_run", "bf16"} <= set(asked)
    assert not reason.startswith("the replayed steps do not show the fault")


def test_a_run_in_fp32_that_fits_fp16_is_verified() -> None:
    found = what_if(sound(dtype=torch.float32), Question(dtype="fp16")).verification
    assert (found.verdict, found.reason) == (Verdict.VERIFIED, "")


def test_a_run_in_fp32_is_replayed_as_autocast_would_run_it() -> None:
    bundle = hot(dtype=torch.float32)
    answer = what_if(bundle, Question(dtype="fp16"))
    assert answer.verification.before["non-finite elements"] == 0
    assert [s.module_path for s in answer.births_after] == ["hot"]
    with pytest.raises(UsageError, match="keep-beside-dtype"):
        what_if(bundle, Question(dtype="fp16", keep=("module:hot",)))


def test_fp64_as_reference(overflowing: Bundle) -> None:
    in_fp32 = what_if(overflowing, Question(dtype="bf16"))
    in_fp64 = what_if(overflowing, Question(dtype="bf16", reference="fp64"))
    assert in_fp64.reference["loss"] != in_fp32.reference["loss"]
    assert in_fp64.reference["loss"] == pytest.approx(in_fp32.reference["loss"], rel=1e-4)


def test_a_step_of_another_kind_of_machine_is_told(overflowing: Bundle) -> None:
    other = dict.fromkeys(overflowing.outcome, "0" * 64)
    answer = what_if(replace(overflowing, outcome=other), Question())
    assert not answer.repetition.bit_equal
    assert answer.repetition.differing == len(other)


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (Question(keep=("module:cold",)), r"covers no op of step 0.*module:hot.*keep-covers"),
        (Question(keep=("op:aten.exp",)), r"keep-covers-nothing"),
        (Question(keep=("hot",)), r"module:PATH.*\[bad-keep\]"),
        (Question(keep=("module:",)), r"\[bad-keep\]"),
        (Question(loss_scale=0.0), r"got 0.*\[bad-loss-scale\]"),
        (Question(loss_scale=float("nan")), r"\[bad-loss-scale\]"),
    ],
)
def test_what_cannot_be_asked(overflowing: Bundle, question: Question, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        what_if(overflowing, question)


def test_torch_computes_as_in_the_recording_and_is_put_back() -> None:
    origin = Origin("train.py", 0, "cpu", "0", "2", 2, {"float32 matmul precision": "medium"})

    def state() -> tuple[int, str]:
        return torch.get_num_threads(), torch.get_float32_matmul_precision()

    before = state()
    with as_recorded(origin):
        assert state() == (2, "medium")
    assert state() == before
    hostile = replace(origin, threads=-5, settings={"float32 matmul precision": "none at all"})
    with as_recorded(hostile):
        assert state() == (1, before[1])
    assert state() == before
