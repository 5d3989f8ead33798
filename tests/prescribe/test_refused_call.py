"""A script that fp16 refuses a constant in: cures are tried on the step up to the refused call."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from refusing import scanned, train
from torch import Tensor

from fp16doctor.prescribe.constants import beyond_format, within_format
from fp16doctor.prescribe.edit import (
    diff,
    receiver,
    with_call_in_fp32,
    with_number,
    within_block,
)
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.location import OpSite, Phase, SourceLine
from fp16doctor.schema.prescription import Prescription, RecommendationStatus, RemedyKind, Verdict
from fp16doctor.schema.tape import OpCall, TensorRef


def filled(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask, -1e9)


def filled_in_place(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill_(mask, -1e9)


def large_before(scores: Tensor, mask: Tensor) -> Tensor:
    return (scores * 1e6).masked_fill(mask, -1e9)


def made(scores: Tensor, mask: Tensor) -> Tensor:
    return scores + torch.full((4, 4), 1e6, dtype=scores.dtype)


def cures(diagnosis: Diagnosis) -> dict[tuple[RemedyKind, object], Prescription]:
    return {(p.remedy.kind, p.remedy.value): p for p in diagnosis.prescriptions}


EDIT, KEEP = (RemedyKind.CODE_FIX, None), (RemedyKind.FP32_KEEP, None)
FORMATS = [(RemedyKind.DTYPE, "bf16"), (RemedyKind.DTYPE, "fp32")]


@pytest.mark.parametrize("masking", [filled, filled_in_place])
def test_the_refused_constant_is_put_within_the_format(
    masking: Callable[[Tensor, Tensor], Tensor],
) -> None:
    _, diagnosis = scanned(lambda: train(masking))
    found = cures(diagnosis)
    assert {found[k].verification.verdict for k in (EDIT, KEEP, *FORMATS)} == {Verdict.VERIFIED}
    edit = found[EDIT]
    old, new = (x for x in edit.remedy.change.splitlines()[3:] if x[0] in "-+")
    assert "-1e9" in old
    assert new.endswith("torch.finfo(scores.dtype).min)")
    assert diagnosis.recommendation.status is RecommendationStatus.PRESCRIBED
    (chosen,) = diagnosis.recommendation.prescriptions
    assert diagnosis.prescriptions[chosen] == edit


def test_a_constant_that_is_not_on_the_line_is_named_by_itself() -> None:
    lowest = torch.finfo(torch.float32).min

    def named(scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(mask, lowest)

    edit = cures(scanned(lambda: train(named))[1])[EDIT]
    assert edit.verification.verdict is Verdict.VERIFIED
    place, _, said = edit.remedy.change.partition(": ")
    assert re.fullmatch(r"# .*test_refused_call\.py:\d+", place)
    assert said == f"torch.finfo(scores.dtype).min in place of {lowest!r}"


def test_the_proof_says_how_far_it_goes() -> None:
    _, diagnosis = scanned(lambda: train(filled))
    proof = cures(diagnosis)[EDIT].verification
    assert proof.reason == "replayed up to the op that raised at step 0; what follows it never ran"
    assert (proof.before, proof.after) == ({"calls that raise": 1.0}, {"calls that raise": 0.0})
    assert proof.steps == (0,)


def test_what_is_not_finite_in_front_of_the_call_refutes_the_edit() -> None:
    _, diagnosis = scanned(lambda: train(large_before))
    found = cures(diagnosis)
    assert found[EDIT].verification.verdict is Verdict.REFUTED
    assert "in front of the call" in found[EDIT].verification.reason
    assert found[FORMATS[0]].verification.verdict is Verdict.VERIFIED


def test_a_constant_that_is_computed_with_is_not_changed() -> None:
    _, diagnosis = scanned(lambda: train(made))
    found = cures(diagnosis)
    assert found[EDIT].verification.verdict is Verdict.NOT_VERIFIED  # the advice, as it stands
    assert found[KEEP].verification.verdict is Verdict.VERIFIED


def test_nothing_is_tried_where_the_script_went_on() -> None:
    def caught(scores: Tensor, mask: Tensor) -> Tensor:
        try:
            return filled(scores, mask)
        except RuntimeError:
            return scores.masked_fill(mask, -1e4)

    session, diagnosis = scanned(lambda: train(caught, steps=2))
    assert session._examiner.shelf.refused is None
    assert not diagnosis.prescriptions


def test_nothing_is_tried_where_another_exception_ended_it() -> None:
    def other(scores: Tensor, mask: Tensor) -> Tensor:
        with pytest.raises(RuntimeError):
            filled(scores, mask)
        raise ValueError("value cannot be converted to type c10::Half without overflow")

    session, diagnosis = scanned(lambda: train(other))
    assert session._examiner.shelf.refused is None
    assert {p.verification.verdict for p in diagnosis.prescriptions} <= {Verdict.NOT_VERIFIED}


def test_a_refusal_in_a_later_step_is_replayed_there() -> None:
    def third(scores: Tensor, mask: Tensor, seen: list[int] = []) -> Tensor:  # noqa: B006
        seen.append(0)
        return filled(scores, mask) if len(seen) == 3 else scores

    _, diagnosis = scanned(lambda: train(third, steps=4))
    proof = cures(diagnosis)[EDIT].verification
    assert (proof.verdict, proof.steps) == (Verdict.VERIFIED, (2,))


def test_scores_keep_their_values() -> None:
    """The trials write to copies: the refused call is in place, and is tried four times."""
    buffer = torch.zeros(2, 4, 4, dtype=torch.float16)

    def into(scores: Tensor, mask: Tensor) -> Tensor:
        with torch.no_grad():
            return buffer.masked_fill_(mask, -1e9) + scores

    _, diagnosis = scanned(lambda: train(into))
    assert cures(diagnosis)[EDIT].verification.verdict is Verdict.VERIFIED
    assert not buffer.any()


# -- numbers and lines ---------------------------------------------------------------------------


def call(op: str, *args: object, dtype: str = "float16") -> OpCall:
    ref = TensorRef(1, 0, dtype, (2,), (1,), 0, "cpu")
    return OpCall(0, op, (ref, *args), {}, None, (), OpSite(0, Phase.FORWARD, op, 0))


@pytest.mark.parametrize(
    ("op", "number", "instead"),
    [
        ("aten.masked_fill.Scalar", -1e9, -65504.0),
        ("aten.masked_fill_.Scalar", 1e5, 65504.0),
        ("aten.clamp.default", 1e6, 65504.0),
        ("aten.fill_.Scalar", 1e6, None),
        ("aten.masked_fill.Scalar", -65504.0, None),
        ("aten.masked_fill.Scalar", float("-inf"), None),
    ],
)
def test_the_end_of_the_range_stands_in(op: str, number: float, instead: float | None) -> None:
    assert within_format(call(op, number)) == instead


def test_a_wide_tensor_holds_it() -> None:
    assert beyond_format(call("aten.masked_fill.Scalar", -1e9, dtype="float32")) is None


@pytest.mark.parametrize(
    ("line", "edited"),
    [
        ("s = s.masked_fill(m, -1e9)", "s = s.masked_fill(m, N)"),
        ("if (s := s.masked_fill(m, -1_000_000_000.0)).any():",
         "if (s := s.masked_fill(m, N)).any():"),
        ("größe = größe.masked_fill(m, -1000000000)", "größe = größe.masked_fill(m, N)"),
        ("s = s.masked_fill(m,", None),
        ("s = s.masked_fill(m, FAR)", None),
        ("s = f(-1e9, -1e9)", None),
    ],
)  # fmt: skip
def test_a_number_on_a_line(line: str, edited: str | None) -> None:
    assert with_number(line, -1e9, "N") == edited


def test_receiver_and_diff() -> None:
    assert receiver("a = self.scores(x).masked_fill_(m, -1e9)", "masked_fill") == "self.scores(x)"
    assert receiver("a = torch.clamp(x, 0)", "masked_fill") is None
    line = SourceLine("train.py", 3, "f", "a = 1")
    assert diff(line, "a = 2") == "# train.py:3\n- a = 1\n+ a = 2"
    assert diff(SourceLine("train.py", 3, "f"), "a = 2") == ""


@pytest.mark.parametrize(
    ("line", "edited"),
    [
        ("y = torch.exp(self.f(x))", "y = torch.exp(self.f(x).float())"),
        ("y = self.f(x).exp()", "y = self.f(x).float().exp()"),
        ("y = x.exp_().sum()", None),  # it would write into a copy
        ("y = (a + b).exp()", "y = ((a + b).float()).exp()"),
        ("y = self.exp(x)", None),  # a module of that name
        ("y = exp(x)", None),
        ("y = torch.exp(torch.exp(x))", None),
        ("y = torch.exp(*x)", None),
    ],
)
def test_a_call_with_its_input_in_fp32(line: str, edited: str | None) -> None:
    assert with_call_in_fp32(line, "exp") == edited


@pytest.mark.parametrize(
    ("line", "itself"),
    [
        ("return (q @ k.transpose(-1, -2) / len(q) ** 0.5).softmax(-1)", True),
        ("return F.softmax(self.scale.exp() * x, -1)", True),
        ("return self.fc(x) * 2", False),
        ("return dice(x) * 2", False),
        ("return nn.Linear(3, 3)(x)", False),
        ("for y in x.unbind():", False),
    ],
)
def test_a_line_that_computes_all_itself(line: str, itself: bool) -> None:
    assert (within_block(line, "with a:") is not None) is itself
