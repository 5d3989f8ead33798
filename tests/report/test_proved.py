"""What verified stands for, in the numbers of the cure that the answer names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fp16doctor.report.proved import proved
from fp16doctor.report.view import build_view
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.prescription import RemedyKind, Verdict, Verification
from fp16doctor.schema.recording import Caution

NB = "\u00a0"


def cured(
    diagnosis: Diagnosis,
    before: dict[str, float],
    after: dict[str, float],
    kind: RemedyKind = RemedyKind.DTYPE,
) -> Diagnosis:
    first, *others = diagnosis.prescriptions
    proof = Verification(Verdict.VERIFIED, "", before, after, (0, 1))
    remedy = replace(first.remedy, kind=kind)
    course = {"fp32": (2.5, 2.25, 2.0)}
    cure = replace(first, remedy=remedy, verification=proof)
    return replace(diagnosis, prescriptions=(cure, *others), trajectory=course)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            {"non-finite elements": 57286.0, "gradient lost": 1.0},
            {"non-finite elements": 0.0, "gradient lost": 0.0, "gradient error": 0.87},
            f"nothing is inf or NaN (57{NB}286 elements as run)",
        ),
        (
            {"non-finite elements": 0.0, "gradient error": 1.0, "gradient lost": 1.0},
            {"non-finite elements": 0.0, "gradient error": 0.00043, "gradient lost": 0.06},
            f"the gradients are 0.043{NB}% off those of fp32 (100{NB}% as run)",
        ),
        (
            {"non-finite elements": 0.0, "gradient error": 0.2, "gradient lost": 0.75},
            {"non-finite elements": 0.0, "gradient error": 0.1, "gradient lost": 0.0},
            f"of no gradient more than 0{NB}% becomes zero (75{NB}% as run)",
        ),
        (
            {"realised fraction": 0.0},
            {"realised fraction": 1.0000055},
            f"100{NB}% of the update that is meant is made (0{NB}% as run)",
        ),
        ({"calls that raise": 1.0}, {"calls that raise": 0.0}, "no call raises"),
        ({}, {}, "the fault is gone"),
    ],
)
def test_the_number_that_was_off_is_told(
    overflow: Diagnosis, before: dict[str, float], after: dict[str, float], words: str
) -> None:
    said = proved(cured(overflow, before, after))
    assert said == f"verified: with the cure, in steps 0 and 1, {words}"


def test_the_loss_stands_beside_that_of_fp32(overflow: Diagnosis) -> None:
    after = {"loss after 3 steps": 2.02}
    assert proved(cured(overflow, {}, after)).endswith("; loss 2.02 after 3 steps (fp32: 2)")
    other_weights = cured(overflow, {}, after, kind=RemedyKind.FIXUP_INIT)
    as_they_are = "; loss 2.02 after 3 steps (fp32 with the weights as they are: 2)"
    assert proved(other_weights).endswith(as_they_are)
    further = cured(overflow, {}, {"loss after 9 steps": 2.02})
    assert proved(further).endswith("; loss 2.02 after 9 steps")


def test_nothing_is_called_verified_that_was_not(overflow: Diagnosis) -> None:
    sound = cured(overflow, {}, {})
    first, *others = sound.prescriptions
    for proof in (
        replace(first.verification, verdict=Verdict.NOT_VERIFIED),
        replace(first.verification, steps=()),
    ):
        unproved = replace(sound, prescriptions=(replace(first, verification=proof), *others))
        assert proved(unproved) == ""
    advice = replace(sound.recommendation, prescriptions=())
    assert proved(replace(sound, recommendation=advice)) == ""


def test_the_proof_tells_a_limit_in_one_sentence_and_the_page_folds_the_rest(
    overflow: Diagnosis,
) -> None:
    said = Caution("simulated", "It was simulated. With other sums. And lists")
    view = build_view(replace(overflow, warnings=(said,)))
    assert view.answer.proof.endswith("limit of the observation: It was simulated  [simulated]")
    (limit,) = view.limits
    assert (limit.text, limit.more) == (
        "It was simulated  [simulated]",
        "With other sums. And lists",
    )
