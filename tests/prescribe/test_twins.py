"""A cure is listed once: tried, or else untried."""

from __future__ import annotations

import pytest

from fp16doctor.prescribe.twins import without_twins
from fp16doctor.schema.prescription import (
    Prescription,
    Recommendation,
    RecommendationStatus,
    Remedy,
    RemedyKind,
    Verdict,
    Verification,
)


def advice(text: str, *treats: int) -> Prescription:
    untried = Verification(Verdict.NOT_VERIFIED)
    return Prescription(Remedy(RemedyKind.CODE_FIX, text), treats or (0,), untried)


def tried(kind: RemedyKind, *treats: int, verdict: Verdict = Verdict.VERIFIED) -> Prescription:
    return Prescription(Remedy(kind, "t"), treats or (0,), Verification(verdict, steps=(0,)))


def left(*found: Prescription, chosen: tuple[int, ...] = ()) -> tuple[list[str], tuple[int, ...]]:
    answer = Recommendation(RecommendationStatus.PRESCRIBED, "s", chosen)
    kept, answer = without_twins(found, answer)
    return [p.remedy.title for p in kept], answer.prescriptions


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("raise eps to a value that fp16 can hold", RemedyKind.CODE_FIX),
        ("scale the loss: `scaler.scale(loss).backward()`", RemedyKind.LOSS_SCALE),
        ("compute the operand and its logarithm in fp32: run `f` in fp32", RemedyKind.FP32_KEEP),
        ("keep the average in fp32", RemedyKind.STORAGE),
    ],
)
def test_advice_goes_beside_its_proof(text: str, kind: RemedyKind) -> None:
    assert left(advice(text), tried(kind), chosen=(1,)) == (["t"], (0,))
    assert left(advice(text), tried(kind, 1), chosen=(1,)) == ([text, "t"], (1,))
    refuted = tried(kind, verdict=Verdict.REFUTED)
    assert left(advice(text), refuted)[0] == [text, "t"]


def test_another_change_stays() -> None:
    text = "put an eps under the root"
    for kind in (RemedyKind.LOSS_SCALE, RemedyKind.FP32_KEEP, RemedyKind.DTYPE):
        assert left(advice(text), tried(kind))[0] == [text, "t"]
    assert left(advice(text, 0, 1), tried(RemedyKind.CODE_FIX))[0] == [text, "t"]


def test_what_is_recommended_stays() -> None:
    assert left(advice("a"), tried(RemedyKind.CODE_FIX), chosen=(0,)) == (["a", "t"], (0,))
