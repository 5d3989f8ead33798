"""Rounding from any input, not only the critical ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fp16doctor.errors import Fp16DoctorError
from fp16doctor.formats import all_formats, get_format
from fp16doctor.formats.rounding import round_to
from fp16doctor.formats.scalar import round_scalar

FP16 = get_format("fp16")
BF16 = get_format("bf16")
DOUBLE_ROUNDING = 1 + 2.0**-11 + 2.0**-30  # above the midpoint of 1 and 1 + eps, but not in fp32


@given(st.floats(width=32))
def test_a_float_rounds_to_fp16_and_bf16_as_torch_casts_it(value: float) -> None:
    # fp32 -> 16 bits is one rounding in torch, so its cast is an exact oracle.
    x = torch.tensor([value], dtype=torch.float32)
    for fmt, dtype in ((FP16, torch.float16), (BF16, torch.bfloat16)):
        want = x.to(dtype).to(torch.float32)
        assert torch.equal(round_to(x, fmt).nan_to_num(9.0), want.nan_to_num(9.0))


@given(st.floats(width=64))
def test_a_double_rounds_to_fp16_as_numpy_casts_it(value: float) -> None:
    # fp64 -> fp16 is one rounding in numpy; torch goes through fp32, so it is no oracle here.
    with np.errstate(over="ignore"):
        want = float(np.float64(value).astype(np.float16))
    got = round_to(torch.tensor([value], dtype=torch.float64), FP16).item()
    assert got == want or (got != got and want != want)


@given(st.floats(width=64), st.sampled_from(all_formats()), st.booleans())
def test_scalar_and_tensor_twins_agree_on_any_double(value: float, fmt, flush: bool) -> None:
    got = round_to(torch.tensor([value], dtype=torch.float64), fmt, flush_subnormals=flush).item()
    want = round_scalar(value, fmt, flush_subnormals=flush)
    assert str(got) == str(want)  # tells the zeros apart, and NaN is NaN


def test_a_double_is_rounded_once_where_torch_rounds_twice() -> None:
    x = torch.tensor([DOUBLE_ROUNDING], dtype=torch.float64)
    assert x.half().item() == 1.0
    assert round_to(x, FP16).item() == 1 + FP16.eps


@pytest.mark.parametrize(
    ("dtype", "fmt", "result"),
    [
        (torch.float16, "bf16", torch.float32),
        (torch.float32, "fp16", torch.float32),
        (torch.float64, "fp16", torch.float64),
        (torch.float32, "fp64", torch.float64),
    ],
)
def test_the_result_can_hold_every_value_of_the_format(dtype, fmt, result) -> None:
    x = torch.tensor([65504.0], dtype=dtype)
    rounded = round_to(x, get_format(fmt))
    assert rounded.dtype == result
    assert rounded.item() == (65536.0 if fmt == "bf16" else 65504.0)


def test_the_input_is_left_alone_and_the_shape_kept() -> None:
    x = torch.full((2, 0, 3), 1e-9)
    y = torch.full((2, 1, 3), 1e-9, requires_grad=True)
    assert round_to(x, FP16).shape == x.shape
    assert round_to(y, FP16).count_nonzero() == 0
    assert torch.equal(y.detach(), torch.full((2, 1, 3), 1e-9))


def test_integers_are_refused() -> None:
    with pytest.raises(Fp16DoctorError, match=r"\[not-floating\]"):
        round_to(torch.tensor([1]), FP16)
