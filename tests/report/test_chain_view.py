"""The way from a fault to what it reaches, in boxes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fp16doctor.report.html import render_html
from fp16doctor.report.view import build_view
from fp16doctor.report.view_model import ChainBox
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Fault, Finding

HandMade = dict[str, Callable[[], Diagnosis]]


def boxes(diagnosis: Diagnosis, **changes: object) -> tuple[ChainBox, ...]:
    finding: Finding = replace(diagnosis.findings[0], **changes)  # type: ignore[arg-type]
    return build_view(replace(diagnosis, findings=(finding,))).findings[0].boxes


def test_from_the_birth_to_the_loss_scale(overflow: Diagnosis) -> None:
    found = boxes(overflow)
    assert [(b.label, b.head) for b in found] == [
        ("birth", "aten.mm"),
        ("first NaN", "aten._softmax"),
        ("then", "aten.nll_loss_forward"),
        ("inherited", "214 later ops"),
        ("reaches", "loss"),
        ("reaches", "gradients"),
        ("reaches", "loss scale"),
    ]
    assert found[0].place == "train.py:40 · blocks.2.ffn.wo (Linear)"
    assert found[0].value == "amax 1.84e5 at [3, 17], fp16 overflow threshold 65520"
    assert [b.value for b in found[4:]] == [
        "NaN at step 0", "the scaler found inf: the step is skipped", "65536 → 32768"
    ]  # fmt: skip


def test_the_reason_comes_before_the_birth(hand_made: HandMade) -> None:
    found = build_view(hand_made["logic-nan"]()).findings[0].boxes
    assert [(b.label, b.head) for b in found[:2]] == [
        ("reason", "aten.masked_fill.Scalar"), ("birth", "aten._softmax")
    ]  # fmt: skip


def test_an_op_in_a_loop_is_one_box(overflow: Diagnosis) -> None:
    site = overflow.findings[0].site
    assert site is not None
    found = boxes(overflow, chain=(site, replace(site, index=999)))
    assert [b.label for b in found][:2] == ["birth", "inherited"]


def test_a_fault_of_use_is_a_place_and_a_finite_loss_has_no_value(overflow: Diagnosis) -> None:
    steps = tuple(
        replace(s, loss=2.0, found_inf=False, next_loss_scale=None) for s in overflow.steps
    )
    found = boxes(replace(overflow, steps=steps), fault=Fault.MISUSE, chain=())
    assert [(b.label, b.head, b.value) for b in found[1:]] == [
        ("reaches", "loss", ""), ("reaches", "gradients", "")
    ]  # fmt: skip
    assert found[0].label == "place"


def test_what_has_no_op_or_reaches_nothing_is_no_chain(overflow: Diagnosis) -> None:
    assert boxes(overflow, site=None) == ()
    quiet = replace(overflow, steps=())
    assert boxes(quiet, chain=(), reaches=(), consequences=0) == ()


def test_the_page_has_them_as_a_list_that_reads_without_scripts(overflow: Diagnosis) -> None:
    page = render_html(overflow)
    chain = page.partition('<ol class="chain" aria-label="')[2].partition("</ol>")[0]
    assert chain.count("<li>") == 7
    assert "<strong>aten.mm</strong>" in chain
