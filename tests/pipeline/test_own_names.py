"""What is quoted of a change has the script's own names, where its diff has them."""

from __future__ import annotations

import pytest

from fp16doctor.pipeline.own_names import with_own_names
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.prescription import (
    Prescription,
    Recommendation,
    RecommendationStatus,
    Remedy,
    RemedyKind,
    Verdict,
    Verification,
)

DIFF = """\
--- a/train.py
+++ b/train.py
@@ -3,2 +3,3 @@
     amp.grad_scaler.scale(loss).backward()
-    opt.step()
+    amp.grad_scaler.step(opt)
+    amp.grad_scaler.update()
"""
ADVICE = (
    "replace `optimizer.step()` at `train.py:4` by `scaler.step(optimizer)`, which unscales, "
    "followed by `scaler.update()`: the scaler and the optimizer"
)
OWN = (
    "replace `opt.step()` at `train.py:4` by `amp.grad_scaler.step(opt)`, which unscales, "
    "followed by `amp.grad_scaler.update()`: the scaler and the optimizer"
)


def told(advice: str, change: str, kind: RemedyKind = RemedyKind.CODE_FIX) -> tuple[str, str, str]:
    cure = Prescription(Remedy(kind, advice, change=change), (0,), Verification(Verdict.VERIFIED))
    finding = Finding("FD403", "n", Severity.ERROR, Fault.MISUSE, "w", "c", None, advice=advice)
    answer = Recommendation(RecommendationStatus.PRESCRIBED, f"{advice}; and more", (0,))
    (cure,), (finding,), answer = with_own_names((cure,), (finding,), answer)
    return cure.remedy.title, finding.advice, answer.sentence


def test_the_names_of_the_diff_are_used_everywhere() -> None:
    assert told(ADVICE, DIFF) == (OWN, OWN, f"{OWN}; and more")


@pytest.mark.parametrize("change", ["", "# train.py:3\n- a\n+ b", "model.half()"])
def test_without_a_diff_the_words_stay(change: str) -> None:
    assert told(ADVICE, change)[0] == ADVICE


def test_only_changes_of_code() -> None:
    assert told(ADVICE, DIFF, RemedyKind.DTYPE)[0] == ADVICE


def test_two_names_are_not_one() -> None:
    two = DIFF + "-    other.step()\n+    amp.grad_scaler.step(other)\n"
    title = told(ADVICE, two)[0]
    assert "`optimizer.step()`" in title
    assert "`amp.grad_scaler.step(optimizer)`" in title
