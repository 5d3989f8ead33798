"""The registry of number formats and the stored facts nobody may change by accident."""

from __future__ import annotations

import dataclasses

import pytest

from fp16doctor.errors import Fp16DoctorError
from fp16doctor.formats import (
    NumberFormat,
    all_formats,
    format_of_dtype_name,
    get_format,
    register,
)


def test_formats_come_in_the_order_of_their_files() -> None:
    names = [fmt.name for fmt in all_formats()]
    assert names == ["bf16", "fp16", "fp32", "fp64", "fp8_e4m3", "fp8_e5m2"]


def test_the_limits_of_fp16_and_bf16_are_those_of_the_textbook() -> None:
    fp16, bf16 = get_format("fp16"), get_format("bf16")
    assert (fp16.max, fp16.overflow_threshold) == (65504.0, 65520.0)
    assert (fp16.smallest_normal, fp16.smallest_subnormal) == (2.0**-14, 2.0**-24)
    assert (fp16.underflow_threshold, fp16.eps) == (2.0**-25, 2.0**-10)
    assert (fp16.bias, fp16.dynamic_range_binades) == (15, 40)
    assert (bf16.smallest_normal, bf16.smallest_subnormal) == (2.0**-126, 2.0**-133)
    assert (bf16.eps, bf16.unit_roundoff) == (2.0**-7, 2.0**-8)


def test_a_format_without_subnormals_ends_at_its_smallest_normal() -> None:
    flushed = dataclasses.replace(get_format("fp16"), has_subnormals=False)
    assert flushed.smallest_subnormal == flushed.smallest_normal
    assert flushed.dynamic_range_binades == 30


def test_dtype_names_map_to_formats() -> None:
    assert format_of_dtype_name("float16") == "fp16"
    assert format_of_dtype_name("bfloat16") == "bf16"
    assert format_of_dtype_name("float8_e4m3fn") == "fp8_e4m3"
    assert format_of_dtype_name("int64") is None
    assert format_of_dtype_name("complex64") is None


def test_an_unknown_name_says_which_there_are() -> None:
    with pytest.raises(Fp16DoctorError, match=r"'fp12'.*bf16, fp16, fp32.*\[unknown-format\]"):
        get_format("fp12")


def test_a_name_or_dtype_cannot_be_taken_twice() -> None:
    before = all_formats()
    with pytest.raises(ValueError, match="'fp16' is registered twice"):
        register(NumberFormat("fp16", 5, 10))
    with pytest.raises(ValueError, match="'float16' of 'half'"):
        register(NumberFormat("half", 5, 10, "float16"))
    assert all_formats() == before
