"""Numbers and names as findings spell them."""

from __future__ import annotations

import math

import pytest
from making import LINE, event, site

from fp16doctor.diagnose.families import base_op
from fp16doctor.diagnose.limits import fits, halvings_to_fit, limits
from fp16doctor.diagnose.sentences import joined, made, number, place, subject
from fp16doctor.schema.location import SourceLine


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (65504.0, "65504"), (65520.0, "65520"), (-65504.0, "−65504"), (65536.0, "65536"),
        (183500.0, "1.84e5"), (2.0**-24, "2⁻²⁴"), (2.0**32, "2³²"), (0.25, "0.25"), (0.0, "0"),
        (-0.0, "0"), (1.0, "1"), (math.inf, "inf"), (-math.inf, "−inf"), (math.nan, "NaN"),
        (1e-8, "1e-8"), (3.3895e38, "3.39e38"), (12.0, "12"), (2.31415, "2.31"),
    ],
)  # fmt: skip
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("op", "base"),
    [
        ("aten.add_.Tensor", "add"), ("aten._softmax.default", "softmax"),
        ("aten._foreach_norm.Scalar", "norm"), ("mylib.op.default", "op"), ("", ""),
    ],
)  # fmt: skip
def test_base_op(op: str, base: str) -> None:
    assert base_op(op) == base


@pytest.mark.parametrize(
    ("exact", "n_inf", "n_nan", "text"),
    [
        (math.inf, 5, 1, "inf"),  # 1/0 is the worst element, 0/0 another
        (-math.inf, 5, 1, "−inf"), (math.nan, 5, 1, "NaN"), (math.nan, 0, 2, "NaN"),
        (-7e4, 3, 0, "−inf"), (7e4, 3, 0, "inf"), (None, 1, 0, "inf"), (None, 1, 1, "NaN"),
    ],
)  # fmt: skip
def test_made_is_what_stands_at_the_named_element(
    exact: float | None, n_inf: int, n_nan: int, text: str
) -> None:
    assert made(event(exact=exact, n_inf=n_inf, n_nan=n_nan)) == text


def test_subject_is_the_name_the_user_knows() -> None:
    top = SourceLine("train.py", 7, "<module>")
    assert subject(site()) == "`blocks.2.ffn.wo`"
    assert subject(site(module_path="", module_class="Net")) == "`Net`"
    assert subject(site(module_path=None)) == "`FFN.forward`"
    assert subject(site(module_path=None, source=top)) == "`train.py:7`"
    assert subject(site(module_path=None, source=None)) == "`aten.mm.default`"
    assert subject(site(module_path=None, source=None, caller=LINE)) == "`FFN.forward`"


def test_place_names_every_part_once() -> None:
    top = SourceLine("train.py", 7, "<module>")
    assert place(site()) == "`aten.mm.default` in `blocks.2.ffn.wo` at `train.py:40`"
    assert place(site(module_path=None, source=top)) == "`aten.mm.default` in `train.py:7`"
    assert place(site(module_path=None, source=None)) == "`aten.mm.default`"


def test_lists() -> None:
    assert joined(()) == ""
    assert joined(("loss",)) == "the loss"
    assert joined(("loss", "gradients", "buffers")) == "the loss, gradients and buffers"


@pytest.mark.parametrize(
    ("size", "halvings"),
    [(65519.0, 0), (65520.0, 1), (65536.0, 1), (131039.0, 1), (131040.0, 2), (1e8, 11),
     (math.inf, 0)],
)  # fmt: skip
def test_halvings_to_fit_is_the_smallest_power(size: float, halvings: int) -> None:
    k = halvings_to_fit(size, "fp16")
    assert k == halvings
    if math.isfinite(size):
        assert fits(size / 2**k, "fp16")
        assert k == 0 or not fits(size / 2 ** (k - 1), "fp16")


def test_names_that_are_no_real_format_have_the_widest_limits() -> None:
    assert limits("complex64").name == "fp64"
    assert fits(1e300, "complex64")
