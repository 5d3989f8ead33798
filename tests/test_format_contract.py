"""What every number format must keep: its limits and its rounding are those of torch and numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fp16doctor.formats import NumberFormat, all_formats
from fp16doctor.formats.rounding import round_to
from fp16doctor.formats.scalar import round_scalar

FORMATS = [pytest.param(fmt, id=fmt.name) for fmt in all_formats()]
NARROW = [pytest.param(fmt, id=fmt.name) for fmt in all_formats() if fmt.bits <= 16]


def dtype_of(fmt: NumberFormat) -> torch.dtype:
    assert fmt.dtype_name is not None
    dtype = getattr(torch, fmt.dtype_name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def all_values(fmt: NumberFormat) -> torch.Tensor:
    """Every code of a format of at most 16 bits, NaN codes included, as fp32."""
    codes = torch.arange(2**fmt.bits, dtype=torch.int32)
    integer = torch.uint8 if fmt.bits == 8 else torch.int16
    return codes.to(integer).view(dtype_of(fmt)).to(torch.float32)


def finite_values(fmt: NumberFormat) -> torch.Tensor:
    values = all_values(fmt)
    return values[torch.isfinite(values)].unique()  # sorted; one zero


def critical_inputs(fmt: NumberFormat) -> torch.Tensor:
    """Every code, every midpoint and threshold, and their fp32 neighbours, exact in fp32."""
    values = finite_values(fmt).to(torch.float64)
    midpoints = (values[1:] + values[:-1]) / 2
    thresholds = torch.tensor(
        [fmt.overflow_threshold, fmt.underflow_threshold, fmt.max, fmt.smallest_normal],
        dtype=torch.float64,
    )
    centres = torch.cat([midpoints, thresholds, -thresholds])
    exact = centres.to(torch.float32)
    assert torch.equal(exact.to(torch.float64), centres)
    infinity = torch.tensor(math.inf)
    around = [torch.nextafter(exact, infinity), torch.nextafter(exact, -infinity)]
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e30, -1e30, 1e-44])
    return torch.cat([all_values(fmt), exact, *around, special])


def native(values: torch.Tensor, fmt: NumberFormat) -> torch.Tensor:
    return values.to(dtype_of(fmt)).to(torch.float32)


def assert_same(got: torch.Tensor, want: torch.Tensor, inputs: torch.Tensor) -> None:
    """Equal in value and sign of zero, NaN where NaN."""
    same = (got == want) & (torch.signbit(got) == torch.signbit(want))
    same |= torch.isnan(got) & torch.isnan(want)
    wrong = [(inputs[i].item(), got[i].item(), want[i].item()) for i in torch.where(~same)[0][:5]]
    assert not wrong, f"(input, got, wanted): {wrong}"


@pytest.mark.parametrize("fmt", FORMATS)
def test_limits_equal_torch_finfo(fmt: NumberFormat) -> None:
    info = torch.finfo(dtype_of(fmt))
    assert fmt.bits == info.bits
    assert fmt.max == info.max
    assert -fmt.max == info.min
    assert fmt.smallest_normal == info.smallest_normal
    assert fmt.eps == info.eps


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_limits_equal_numpy_finfo(name: str) -> None:
    fmt = next(f for f in all_formats() if f.dtype_name == name)
    info = np.finfo(name)
    assert fmt.bits == info.bits
    assert fmt.max == float(info.max)
    assert fmt.smallest_normal == float(info.smallest_normal)
    assert fmt.smallest_subnormal == float(info.smallest_subnormal)
    assert fmt.eps == float(info.eps)
    assert fmt.unit_roundoff == fmt.eps / 2
    assert fmt.min_exponent == info.minexp
    assert fmt.max_exponent == info.maxexp - 1
    assert fmt.mantissa_bits == info.nmant
    assert fmt.exponent_bits == info.iexp


@pytest.mark.parametrize("fmt", NARROW)
def test_limits_equal_the_extremes_of_all_codes(fmt: NumberFormat) -> None:
    values = finite_values(fmt)
    positive = values[values > 0]
    assert positive.max().item() == fmt.max
    assert positive.min().item() == fmt.smallest_subnormal
    assert torch.isinf(all_values(fmt)).any().item() == fmt.has_inf
    assert torch.isnan(all_values(fmt)).any().item() == fmt.has_nan
    binades = torch.frexp(positive.to(torch.float64)).exponent.unique()
    assert len(binades) == fmt.dynamic_range_binades


@pytest.mark.parametrize("fmt", FORMATS)
def test_thresholds_are_where_a_native_cast_turns(fmt: NumberFormat) -> None:
    if fmt.bits == 64:  # both lie outside fp64 itself
        assert fmt.overflow_threshold == math.inf
        assert fmt.underflow_threshold == 0.0
        return
    dtype = dtype_of(fmt)
    source = torch.float64 if fmt.bits == 32 else torch.float32

    def cast(value: float, towards: float | None = None) -> float:
        x = torch.tensor([value], dtype=source)
        if towards is not None:
            x = torch.nextafter(x, torch.tensor(towards, dtype=source))
        return x.to(dtype).to(source).item()

    assert cast(fmt.underflow_threshold) == 0.0
    assert cast(fmt.underflow_threshold, math.inf) == fmt.smallest_subnormal
    assert cast(fmt.overflow_threshold, 0.0) == fmt.max
    if fmt.has_inf:
        assert cast(fmt.overflow_threshold) == math.inf


@pytest.mark.parametrize("fmt", NARROW)
def test_rounding_equals_the_native_cast(fmt: NumberFormat) -> None:
    inputs = critical_inputs(fmt)
    if not fmt.has_inf and math.isnan(native(torch.tensor([1e9]), fmt).item()):
        # torch before 2.13 casts to NaN here, the other choice the OFP8 specification allows.
        inputs = inputs[~(inputs.abs() > fmt.overflow_threshold)]
    assert_same(round_to(inputs, fmt), native(inputs, fmt), inputs)


def test_rounding_to_fp32_equals_the_native_cast() -> None:
    fmt = next(f for f in all_formats() if f.name == "fp32")
    codes = torch.randint(0, 0x7F80_0000, (20_000,), dtype=torch.int32)  # finite, all binades
    values = codes.view(torch.float32).to(torch.float64)
    following = (codes + 1).view(torch.float32).to(torch.float64)
    midpoints = (values + following)[torch.isfinite(following)] / 2
    infinity = torch.tensor(math.inf, dtype=torch.float64)
    thresholds = torch.tensor(
        [fmt.overflow_threshold, fmt.underflow_threshold], dtype=infinity.dtype
    )
    centres = torch.cat([midpoints, thresholds])
    around = [torch.nextafter(centres, infinity), torch.nextafter(centres, -infinity)]
    special = torch.tensor([0.0, math.inf, math.nan, 5e-324, 1.7e308], dtype=torch.float64)
    inputs = torch.cat([values, centres, *around, special])
    inputs = torch.cat([inputs, -inputs])
    assert_same(round_to(inputs, fmt).to(torch.float32), inputs.to(torch.float32), inputs)


def test_rounding_to_fp64_changes_nothing() -> None:
    fmt = next(f for f in all_formats() if f.name == "fp64")
    bits = torch.randint(-(2**63), 2**63 - 1, (20_000,), dtype=torch.int64)
    inputs = torch.cat([bits.view(torch.float64), torch.tensor([0.0, -0.0, 5e-324, math.inf])])
    assert_same(round_to(inputs, fmt), inputs, inputs)


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("fmt", FORMATS)
def test_scalar_and_tensor_twins_agree(fmt: NumberFormat, flush: bool) -> None:
    limits = [fmt.overflow_threshold, fmt.underflow_threshold, fmt.max, fmt.smallest_normal]
    limits += [fmt.smallest_subnormal, 3 * fmt.smallest_subnormal, 1 + fmt.unit_roundoff]
    limits += [math.nextafter(x, up) for x in limits for up in (0.0, math.inf)]
    random = (torch.rand(200, dtype=torch.float64) * 2 - 1) * torch.exp2(
        torch.empty(200, dtype=torch.float64).uniform_(
            fmt.min_exponent - fmt.mantissa_bits - 3, fmt.max_exponent + 1
        )
    )
    special = [0.0, -0.0, math.inf, -math.inf, math.nan]
    inputs = torch.tensor([*limits, *[-x for x in limits], *special], dtype=torch.float64)
    inputs = torch.cat([inputs, random])
    got = round_to(inputs, fmt, flush_subnormals=flush)
    want = [round_scalar(x, fmt, flush_subnormals=flush) for x in inputs.tolist()]
    assert_same(got, torch.tensor(want, dtype=torch.float64), inputs)


@pytest.mark.parametrize("fmt", NARROW)
def test_flushing_leaves_no_subnormal_and_moves_nothing_else(fmt: NumberFormat) -> None:
    values = finite_values(fmt)
    flushed = round_to(values, fmt, flush_subnormals=True)
    normal = values.abs() >= fmt.smallest_normal
    assert torch.equal(flushed[normal], values[normal])
    assert not flushed[~normal].any()
    assert torch.equal(torch.signbit(flushed), torch.signbit(values))
