"""From findings to one answer: the order of cures, and what is never recommended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from curing import Job
from deep import Deep, classified
from torch import Tensor

from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.plan import plan
from fp16doctor.prescribe.ranking import rank
from fp16doctor.schema.finding import RISE, Evidence, Fault, Finding, Severity
from fp16doctor.schema.location import OpSite, Phase, SourceLine
from fp16doctor.schema.prescription import (
    Prescription,
    Recommendation,
    RecommendationStatus,
    Remedy,
    RemedyKind,
    Verdict,
    Verification,
)

LARGE = 1.5e5  # times a weight of at most 8 ** -0.5: just within fp16
Planned = tuple[tuple[Prescription, ...], Recommendation]


def site(module: str | None) -> OpSite:
    line = SourceLine("train.py", 3, "Net.forward")
    return OpSite(0, Phase.FORWARD, "aten.mul.Tensor", 5, module, source=line)


def finding(code: str = "FD101", fault: Fault = Fault.OVERFLOW, **more: object) -> Finding:
    evidence = (Evidence("amax", 8e4, "replayed:fp32", format="fp16"),)
    known: dict[str, object] = {"advice": "do this", "evidence": evidence, "site": site("blocks.1")}
    return Finding(code, "name", Severity.ERROR, fault, "w", "c", **(known | more))  # type: ignore[arg-type]


def bench(*gains: float, budget: float = 60) -> Bench:
    return Bench(tuple(Job(lambda: Deep(*gains), classified).tapes()), budget)


def best(planned: Planned) -> Prescription:
    found, answer = planned
    assert answer.status is RecommendationStatus.PRESCRIBED
    (place,) = answer.prescriptions
    assert found[place].remedy.title in answer.sentence
    assert found[place].verification.verdict is Verdict.VERIFIED
    return found[place]


def test_a_cheap_keep_list_comes_before_another_format_and_fp32_last() -> None:
    planned = plan((finding(),), bench(*[1.0] * 1, 1e6, *[1.0] * 8))
    assert best(planned).remedy.kind is RemedyKind.FP32_KEEP
    kinds = {(p.remedy.kind, p.remedy.value) for p in planned[0]}
    assert (RemedyKind.DTYPE, "bf16") in kinds
    assert (RemedyKind.DTYPE, "fp32") in kinds


def test_an_expensive_keep_list_comes_behind_bf16() -> None:
    """The matrix products themselves overflow: half of the model."""

    def large_weights() -> Deep:
        model = Deep(1, 1 / LARGE, 1 / LARGE, 1)
        with torch.no_grad():
            for block in (model.blocks[1], model.blocks[2]):
                block.down.weight.mul_(LARGE)  # type: ignore[union-attr, operator]
        return model

    tapes = tuple(Job(large_weights, classified).tapes())
    planned = plan((finding(),), Bench(tapes, 60))
    lists = [p.remedy for p in planned[0] if p.remedy.kind is RemedyKind.FP32_KEEP]
    assert lists
    assert all(r.cost["flops_share"] > 0.25 for r in lists)
    assert best(planned).remedy.value == "bf16"


def test_values_that_go_on_growing_ask_for_another_format_and_not_for_a_list() -> None:
    growing = (*finding().evidence, Evidence(RISE, 1.2, "recorded"))
    planned = plan((finding(evidence=growing),), bench(*[1.0] * 1, 1e6, *[1.0] * 8))
    assert best(planned).remedy.value == "bf16"
    lists = [p for p in planned[0] if p.remedy.kind is RemedyKind.FP32_KEEP]
    assert {p.verification.verdict for p in lists} == {Verdict.VERIFIED}
    assert all("rose steadily" in p.verification.reason for p in lists)


def test_only_cures_of_the_leading_finding_are_recommended() -> None:
    """A cure of the second finding is verified; of the first nothing was found."""
    first = finding("FD301", Fault.LOST_UPDATE, site=None)
    found, answer = plan((first, finding()), bench(1, 1e6, 1))
    assert any(p.verification.verdict is Verdict.VERIFIED and p.treats == (1,) for p in found)
    assert answer.status is RecommendationStatus.NONE_FOUND
    assert all(0 in found[i].treats for i in answer.prescriptions)


def test_misuse_asks_for_a_change_of_code() -> None:
    found, answer = plan((finding("FD402", Fault.MISUSE), finding()), bench(1, 1e6, 1))
    assert answer.status is RecommendationStatus.NONE_FOUND
    (place,) = answer.prescriptions
    assert found[place].remedy.kind is RemedyKind.CODE_FIX
    assert found[place].treats == (0,)


def test_logic_is_no_matter_of_precision() -> None:
    logic = Finding("FD111", "logic-nan", Severity.ERROR, Fault.NAN_BIRTH, "w", "c", site("inp"))
    assert plan((logic,), bench(1))[1].status is RecommendationStatus.NOT_PRECISION


def test_a_spent_budget_is_said() -> None:
    found, answer = plan((finding(),), bench(1, 1e6, 1, budget=0.0))
    assert found
    assert {p.verification.verdict for p in found} == {Verdict.NOT_VERIFIED}
    assert answer.status is RecommendationStatus.NONE_FOUND
    assert "the time budget was spent" in answer.sentence


def test_where_nothing_holds_the_number_of_trials_is_said() -> None:
    def faint(model: object, cast: Callable[[Tensor], Tensor]) -> Tensor:
        return (classified(model, cast) * 0 + 1) * torch.tensor(3e38) * 1e10  # type: ignore[arg-type]

    tapes = tuple(Job(lambda: Deep(1), faint).tapes())
    found, answer = plan((finding(),), Bench(tapes, 60))
    refuted = [p for p in found if p.verification.verdict is Verdict.REFUTED]
    assert answer.status is RecommendationStatus.NONE_FOUND
    assert f"none of {len(refuted)} cures" in answer.sentence


def test_no_finding_needs_nothing() -> None:
    assert plan((), bench(1)) == (
        (),
        Recommendation(
            RecommendationStatus.NONE_NEEDED, "nothing that was examined demands a change"
        ),
    )


def prescription(  # type: ignore[no-untyped-def]
    kind: RemedyKind, value: object = None, flops: float = 0.0, error: float = 0.0, reason: str = ""
):
    proof = Verification(Verdict.VERIFIED, reason, after={"gradient error": error})
    return Prescription(Remedy(kind, "t", value=value, cost={"flops_share": flops}), (0,), proof)


def test_order() -> None:
    ranked = [
        prescription(RemedyKind.STORAGE),
        prescription(RemedyKind.LOSS_SCALE),
        prescription(RemedyKind.CODE_FIX),
        prescription(RemedyKind.FP32_KEEP, flops=0.01),
        prescription(RemedyKind.FP32_KEEP, flops=0.2),
        prescription(RemedyKind.CODE_FIX, reason="judged against fp32 with the same constants"),
        prescription(RemedyKind.DTYPE, "bf16"),
        prescription(RemedyKind.FP32_KEEP, flops=0.4),
        prescription(RemedyKind.DTYPE, "fp32"),
    ]
    assert sorted({rank(p): p for p in ranked[::-1]}) == [*map(rank, ranked)]


def test_of_two_cheap_lists_the_edit_of_a_line_comes_first() -> None:
    def keep(change: str, flops: float) -> Prescription:
        found: Prescription = prescription(RemedyKind.FP32_KEEP, flops=flops)
        return replace(found, remedy=replace(found.remedy, change=change))

    edit = keep("# a.py:3\n- y = x\n+ y = x.float()", 0.02)
    for other in ("module = model.get_submodule('a')", "# a.py:3: call .float() on its inputs",
                  "# above the function\n+ def to(): ...\n# a.py:3\n- y\n+ z"):  # fmt: skip
        assert rank(edit) < rank(keep(other, 0.01))
    assert rank(keep("# a.py:3\n- y = x\n+ y = x.float()", 0.4)) > rank(keep("a", 0.01))


@pytest.mark.parametrize("code", ["FD101", "FD104", "FD201", "FD202", "FD301", "FD401", "FD999"])
@pytest.mark.parametrize("fault", [Fault.OVERFLOW, Fault.LOSS_SCALE, Fault.LOST_UPDATE,
                                   Fault.MISUSE])  # fmt: skip
def test_any_finding_gets_an_answer(code: str, fault: Fault) -> None:
    """Also one without a place, on steps that show nothing of it."""
    for where in (None, site(None), site("blocks.0")):
        planned = plan((finding(code, fault, site=where, advice=""),), bench(1, 1))
        assert planned[1].status is not RecommendationStatus.NONE_NEEDED


def test_a_step_taken_on_a_lost_loss_needs_something_though_nothing_names_it() -> None:
    assert plan(())[1].status is RecommendationStatus.NONE_NEEDED
    assert plan((), lost=True)[1].status is RecommendationStatus.NONE_FOUND
