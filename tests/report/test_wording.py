"""Numbers as a reader gets them."""

from __future__ import annotations

import math

import pytest

from fp16doctor.report import wording
from fp16doctor.schema.diagnosis import FormatLimits
from fp16doctor.schema.location import OpSite, Phase, SourceLine

NB = "\u00a0"
FP16 = FormatLimits("fp16", 65504.0, 65520.0, 2.0**-14, 2.0**-24, 2.0**-10)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (184320.0, "1.84e5"),
        (-184320.0, "−1.84e5"),
        (65504.0, "65504"),
        (-65520.0, "−65520"),
        (65536.0, "65536"),
        (2.0**-24, "2⁻²⁴"),
        (-(2.0**-24), "−2⁻²⁴"),
        (2.0**100, "2¹⁰⁰"),
        (0.5, "0.5"),
        (1024.0, "1024"),
        (1000.0, "1000"),
        (7.0, "7"),
        (2.71828, "2.72"),
        (3.1e-9, "3.1e-9"),
        (0.0, "0"),
        (-0.0, "0"),
        (math.inf, "inf"),
        (-math.inf, "−inf"),
        (math.nan, "NaN"),
        (5e-324, "2⁻¹⁰⁷⁴"),
        (None, "–"),
    ],
)
def test_a_number_has_three_digits_and_limits_are_exact(value: float | None, text: str) -> None:
    assert wording.number(value) == text


def test_a_limit_without_a_short_form_has_five_digits() -> None:
    assert wording.limit(3.3895313892515355e38) == "3.3895e38"
    assert wording.limit(65520.0) == "65520"


def test_a_loss_has_five_digits() -> None:
    assert wording.loss(2.314123) == "2.3141"
    assert wording.loss(math.nan) == "NaN"


def test_counts_are_grouped_by_a_space_that_does_not_break() -> None:
    assert wording.count(1048576) == f"1{NB}048{NB}576"
    assert wording.of_total(12, 1048576) == f"12 of 1{NB}048{NB}576 (0.0011{NB}%)"


@pytest.mark.parametrize(
    ("part", "total", "text"),
    [(0, 5, "0"), (5, 5, "100"), (1, 3, "33.3"), (0, 0, "0"), (1, 10**9, "1e-7")],
)
def test_a_share_is_a_percentage(part: int, total: int, text: str) -> None:
    assert wording.percent(part, total) == f"{text}{NB}%"


def test_nearly_all_is_not_all() -> None:
    assert wording.percent(10**6 - 1, 10**6) == f"> 99.9{NB}%"


def test_headroom_is_negative_beyond_the_maximum() -> None:
    assert wording.headroom(65504.0, FP16) == f"0.0{NB}bits"
    assert wording.headroom(184320.0, FP16) == f"−1.5{NB}bits"
    assert wording.headroom(0.0, FP16) == "–"


def test_plurals() -> None:
    assert wording.plural(1, "op") == "1 op"
    assert wording.plural(0, "op") == "0 ops"


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ((0,), "step 0"),
        ((0, 3), "steps 0 and 3"),
        ((0, 3, 4), "steps 0, 3 and 4"),
        (tuple(range(31)), "steps 0, 1, 2, 3, 4 and 26 more"),
    ],
)
def test_steps_are_listed(steps: tuple[int, ...], text: str) -> None:
    assert wording.steps_named(steps) == text


def test_a_site_is_named_from_step_to_role() -> None:
    site = OpSite(3, Phase.FORWARD, "aten.addmm.default", 4, "mlp.fc2", "Linear")
    assert wording.where(site) == "step 3 · forward · mlp.fc2 (Linear) · aten.addmm · output"
    assert wording.where(site, ranks=8).startswith("rank 0 · step 3")


def test_a_site_without_an_op_names_none() -> None:
    site = OpSite(-1, Phase.SCRIPT, "", -1, source=SourceLine("train.py", 9, "<module>"))
    assert wording.where(site) == "before the first step · script"
    assert wording.brief(site) == "train.py:9"


def test_a_long_text_keeps_both_ends() -> None:
    text = wording.shortened("a" * 100 + "/model.py", 40)
    assert len(text) == 40
    assert text.endswith("/model.py")
    assert wording.shortened("short", 40) == "short"


def test_what_cannot_be_shown_is_spelled_out() -> None:
    assert wording.visible("a\x1b[0m\udc80\u202eb\n") == r"a\x1b[0m\udc80\u202eb\n"
    assert wording.visible("a\nb\tc", keep_newlines=True) == "a\nb c"
    assert wording.visible("模型 – ümlaut") == "模型 – ümlaut"
