"""Two faults, two remedies, one cure: tried together, recommended together or not at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from curing import PURE, Job, far
from deep import Deep, classified
from test_recommendation import finding, site
from torch import Tensor, nn

from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.notes import note
from fp16doctor.prescribe.plan import plan
from fp16doctor.prescribe.search import policy_of
from fp16doctor.prescribe.stored import realised_in_fp32
from fp16doctor.replay.trial import run_trial
from fp16doctor.schema.finding import Evidence, Fault, Finding
from fp16doctor.schema.policy import AS_RUN, FP32, KeepRule, PrecisionPolicy
from fp16doctor.schema.prescription import (
    Prescription,
    Recommendation,
    RecommendationStatus,
    RemedyKind,
    Verdict,
)

WIDE = (*[1.0] * 1, 1e6, *[1.0] * 8)  # the second block overflows; it is a tenth of the work


def faint(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    """Its gradients are far below fp16's smallest subnormal."""
    return classified(model, cast) * 1e-9


def bench_of(*gains: float, loss: Callable[..., Tensor] = faint, budget: float = 60) -> Bench:
    return Bench(tuple(Job(lambda: Deep(*gains), loss).tapes()), budget)


def underflow() -> Finding:
    return finding("FD201", Fault.UNDERFLOW, site=None, advice="scale the loss")


def parts(planned: tuple[tuple[Prescription, ...], Recommendation]) -> list[Prescription]:
    found, answer = planned
    assert answer.status is RecommendationStatus.PRESCRIBED
    return [found[i] for i in answer.prescriptions]


@pytest.mark.parametrize("findings", [(finding(), underflow()), (underflow(), finding())])
def test_an_overflow_and_lost_gradients_get_a_list_and_a_scale(
    findings: tuple[Finding, ...],
) -> None:
    bench = bench_of(*WIDE)
    keep, scale = parts(plan(findings, bench))
    assert keep.remedy.kind is RemedyKind.FP32_KEEP
    assert keep.remedy.target == ("module:blocks.1",)
    assert scale.remedy.kind is RemedyKind.LOSS_SCALE
    window = scale.remedy.value
    assert 1 < window["low"] <= window["recommended"] <= window["high"]
    overflow = next(i for i, f in enumerate(findings) if f.code == "FD101")
    assert keep.treats == (overflow,)
    assert scale.treats == (1 - overflow,)
    for part, other in ((keep, scale), (scale, keep)):
        assert part.verification.verdict is Verdict.VERIFIED
        together = f"tried together with: {other.remedy.title}"
        told = f"{together}; on one step only, by replay of step 0"
        assert part.verification.reason == told
        assert part.verification.after["gradient lost"] < 0.5
        assert part.verification.after["loss scale"] == window["recommended"]


def test_neither_part_does_it_alone() -> None:
    found, _ = plan((finding(), underflow()), bench_of(*WIDE))
    alone = [p for p in found if not p.verification.reason.startswith("tried together")]
    kinds = {p.remedy.kind: p.verification.verdict for p in alone}
    assert kinds[RemedyKind.FP32_KEEP] is Verdict.REFUTED
    assert kinds[RemedyKind.LOSS_SCALE] is Verdict.REFUTED


def test_what_the_trial_did_is_what_the_real_training_does() -> None:
    job = Job(lambda: Deep(*WIDE), faint)
    keep, scale = parts(plan((finding(), underflow()), Bench(tuple(job.tapes()), 60)))
    best = scale.remedy.value["recommended"]
    names = [t.partition(":")[2] for t in keep.remedy.target]
    cured = job.but(scale=best).real(names).gradients
    exact = run_trial(job.tapes()[0], FP32).gradients
    assert far({n: g / best for n, g in cured.items()}, exact) < 0.02


def test_a_second_fault_behind_the_first_needs_no_finding_of_its_own() -> None:
    """The run is NaN everywhere: that its gradients are faint as well shows in the trial only."""
    planned = plan((finding(),), bench_of(*WIDE))
    keep, scale = parts(planned)
    assert planned[1].sentence.endswith("; gradients underflow once nothing else is wrong")
    assert keep.remedy.kind is RemedyKind.FP32_KEEP
    assert scale.remedy.kind is RemedyKind.LOSS_SCALE
    assert scale.treats == (0,)


def test_where_one_cure_does_it_no_second_is_added() -> None:
    """The list alone meets the criteria, and it treats both."""
    found, answer = plan(
        (finding(), finding("FD201", Fault.UNDERFLOW)), bench_of(*WIDE, loss=classified)
    )
    (place,) = answer.prescriptions
    assert found[place].remedy.kind is RemedyKind.FP32_KEEP
    assert not any(p.verification.reason.startswith("tried together") for p in found)


def test_what_no_scale_helps_is_refuted_together() -> None:
    def vanished(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
        return classified(model, cast) * 1e-25

    found, answer = plan((finding(), underflow()), bench_of(*WIDE, loss=vanished))
    together = [p for p in found if "loss scale of 2¹⁶ as well" in p.verification.reason]
    assert [p.verification.verdict for p in together] == [Verdict.REFUTED]
    assert all(found[i] not in together for i in answer.prescriptions)


def test_a_place_of_two_findings_is_named_once() -> None:
    def vanished(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
        return classified(model, cast) * 1e-25

    bench = bench_of(*WIDE, loss=vanished)
    found, _ = plan((finding(), finding("FD102"), underflow()), bench)
    (together,) = (p for p in found if "loss scale of 2¹⁶ as well" in p.verification.reason)
    assert len(set(together.remedy.target)) == len(together.remedy.target)


def test_a_spent_budget_joins_nothing() -> None:
    found, answer = plan((finding(), underflow()), bench_of(*WIDE, budget=0.0))
    assert answer.status is RecommendationStatus.NONE_FOUND
    assert all(p.verification.verdict is Verdict.NOT_VERIFIED for p in found)


# -- storage ---------------------------------------------------------------------------------------


def lost_update() -> Finding:
    realised = Evidence("realised fraction", 0.1, "replayed:fp32", format="fp16")
    return finding("FD301", Fault.LOST_UPDATE, site=None, evidence=(realised,))


@pytest.mark.parametrize("findings", [(lost_update(), finding()), (finding(), lost_update())])
def test_fp32_storage_and_a_list_are_one_cure(findings: tuple[Finding, ...]) -> None:
    """The updates are far below the weights' last place, and a block overflows."""
    job = Job(lambda: Deep(*WIDE), classified, PURE, options={"lr": 1e-5})
    bench = Bench(tuple(job.tapes()), 60)
    chosen = parts(plan(findings, bench))
    kinds = {p.remedy.kind: p for p in chosen}
    assert set(kinds) == {RemedyKind.FP32_KEEP, RemedyKind.STORAGE}
    assert {i for p in chosen for i in p.treats} == {0, 1}
    assert all(p.verification.verdict is Verdict.VERIFIED for p in chosen)
    assert all("tried together with: " in p.verification.reason for p in chosen)
    policies = [a.policy for a in bench.tried if a.policy.stores_fp32]
    assert [p.keep for p in policies] == [
        tuple(map(KeepRule, kinds[RemedyKind.FP32_KEEP].remedy.target))
    ]


def test_storage_in_fp32_keeps_updates_that_16_bits_lose() -> None:
    (tape,) = Job(lambda: Deep(1.0), classified, PURE, options={"lr": 1e-5}).tapes()
    stored = PrecisionPolicy("stored", stores_fp32=True)
    realised = [realised_in_fp32((tape,), parameters=True, policy=p)[0] for p in (AS_RUN, stored)]
    assert realised[0] is not None
    assert realised[0] < 0.7
    assert realised[1] == pytest.approx(1, abs=0.01)


# -- what shows once the first is cured ------------------------------------------------------------


def test_a_birth_behind_the_first_is_told_with_the_refusal() -> None:
    """bf16 would do; fp16 with the first block in fp32 is refused, and why is said."""
    bench = bench_of(1e6, 1, 1e6, loss=classified)
    refused = bench.verification(bench.attempt(policy_of(("module:blocks.0",))))
    assert refused.verdict is Verdict.REFUTED
    assert "`aten.mul.Tensor` at " in refused.reason
    assert refused.reason.endswith("and not in the run")


def test_a_place_behind_the_first_is_told_with_the_cure() -> None:
    gains = [1.0] * 10
    gains[1] = gains[6] = 1e6
    bench, first = bench_of(*gains, loss=classified), finding(site=site("blocks.1"))
    found, _ = plan((first,), bench)
    both = ("module:blocks.1", "module:blocks.6")
    (cure,) = [p for p in found if p.remedy.target == both]
    assert cure.verification.verdict is Verdict.VERIFIED
    said = note(Case((first,), bench), [cure])
    assert said == "; `blocks.6` shows its fault only once the first is cured"
