"""How far a proof goes is said: one step, a few, and a run of consecutive ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from curing import Job
from torch import Tensor, nn

from fp16doctor.prescribe.acceptance import Judgement, noise_words
from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.ranking import rank
from fp16doctor.prescribe.reach import with_reach
from fp16doctor.schema.prescription import (
    Prescription,
    Recommendation,
    RecommendationStatus,
    Remedy,
    RemedyKind,
    Verdict,
    Verification,
)


def loss(model: nn.Module, cast: object) -> Tensor:
    return next(model.parameters()).sum()


TAPES = tuple(
    replace(t, step=t.step + 7) for t in Job(lambda: nn.Linear(1, 1), loss, steps=2).tapes()
)
BENCH = Bench(TAPES, 60, window=TAPES)
ANSWER = Recommendation(RecommendationStatus.PRESCRIBED, "train in bf16", (0,))


def reason(
    steps: tuple[int, ...],
    n_course: int,
    told: str = "",
    answer: Recommendation = ANSWER,
    verdict: Verdict = Verdict.VERIFIED,
) -> str:
    proof = Verification(verdict, told, steps=steps, losses=(1.0,) * n_course)
    cure = Prescription(Remedy(RemedyKind.DTYPE, "train in bf16"), (0,), proof)
    return with_reach([cure], answer, BENCH)[0].verification.reason


@pytest.mark.parametrize(
    ("steps", "n_course", "told", "wanted"),
    [
        ((4,), 0, "", "on one step only, by replay of step 4"),
        ((4,), 10, "", "by replay of step 4 and 10 consecutive ones from step 7 on"),
        ((0, 4), 10, "", "by replay of steps 0 and 4, and 10 consecutive ones from step 7 on"),
        ((0, 4), 0, "", ""),
        ((), 0, "", ""),
        ((4,), 0, "only so", "on one step only, by replay of step 4; only so"),
        ((4,), 0, "by replay of step 4; x", "by replay of step 4; x"),
        ((4,), 0, "replayed up to the op that raised", "replayed up to the op that raised"),
        (
            (4,),
            0,
            "tried together with: a; b",
            "tried together with: a; b; on one step only, by replay of step 4",
        ),
    ],
)
def test_the_steps_that_speak_for_a_cure(
    steps: tuple[int, ...], n_course: int, told: str, wanted: str
) -> None:
    assert reason(steps, n_course, told) == wanted


def test_only_of_the_recommended_one_and_where_it_is_verified() -> None:
    assert reason((4,), 0, answer=replace(ANSWER, prescriptions=())) == ""
    assert reason((4,), 0, verdict=Verdict.NOT_VERIFIED) == ""
    none = replace(ANSWER, status=RecommendationStatus.NONE_FOUND)
    assert reason((4,), 0, answer=none) == ""


def test_a_large_error_on_an_ill_conditioned_step_is_explained() -> None:
    ill = Judgement(True, "", 0, 0.87, None, 0.0, 1.0, ill_conditioned=True, floor=1.9)
    well = Judgement(True, "", 0, 0.01, 1.0, 0.0, 1.0)
    assert noise_words([well, ill], 10) == (
        "rounding noise alone moves the gradients of a step by up to 1.9, so that an error of 0.87 "
        "there tells nothing and the losses of 10 consecutive steps decide"
    )
    assert "of 2 steps by" in noise_words([ill, ill], 10)
    assert noise_words([well], 10) == ""
    assert noise_words([replace(ill, accepted=False)], 10) == ""


def test_that_explanation_puts_no_edit_behind_a_keep_list() -> None:
    def edit(told: str) -> Prescription:
        proof = Verification(Verdict.VERIFIED, told)
        return Prescription(Remedy(RemedyKind.CODE_FIX, "edit it"), (0,), proof)

    ill = Judgement(True, "", 0, 0.87, None, 0.0, 1.0, ill_conditioned=True, floor=1.9)
    assert rank(edit(noise_words([ill], 10))) == rank(edit("")) < rank(edit("only so"))
