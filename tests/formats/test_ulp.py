"""Spacing and distance in ulps, against the formats' own codes and numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fp16doctor.formats import get_format
from fp16doctor.formats.ulp import ulp_distance, ulp_size

FP16 = get_format("fp16")


@pytest.mark.parametrize("name", ["fp16", "fp32", "fp64"])
def test_size_equals_numpy_spacing(name: str) -> None:
    fmt = get_format(name)
    limits = [0.0, fmt.smallest_subnormal, fmt.smallest_normal, 1.0, 1.5, 1024.0, fmt.max]
    values = np.array([*limits, *np.linspace(1e-7, 60000, 500)], dtype=fmt.dtype_name)
    with np.errstate(over="ignore"):  # numpy's spacing at max is inf
        want = np.spacing(values).astype(np.float64)
    want[values == fmt.max] = np.spacing(values[values == fmt.max] / 2) * 2.0
    assert ulp_size(torch.from_numpy(values), fmt).tolist() == want.tolist()
    assert ulp_size(-torch.from_numpy(values), fmt).tolist() == want.tolist()


def test_size_is_nan_for_inf_and_nan_and_that_of_max_above_it() -> None:
    x = torch.tensor([math.inf, math.nan, 1e30])
    sizes = ulp_size(x, FP16)
    assert sizes[:2].isnan().all()
    assert sizes[2].item() == 32.0


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_neighbouring_codes_are_one_apart_up_to_inf(name: str) -> None:
    fmt = get_format(name)
    dtype = getattr(torch, str(fmt.dtype_name))
    top = (2**fmt.exponent_bits - 1) << fmt.mantissa_bits  # code of inf
    values = torch.arange(top + 1, dtype=torch.int16).view(dtype)
    assert (ulp_distance(values[1:], values[:-1], fmt) == 1).all()
    assert (ulp_distance(-values[1:], -values[:-1], fmt) == 1).all()
    from_zero = ulp_distance(values, -torch.zeros_like(values), fmt)
    assert torch.equal(from_zero, torch.arange(top + 1, dtype=torch.float64))


def test_distance_rounds_first_broadcasts_and_crosses_zero() -> None:
    smallest = FP16.smallest_subnormal
    left = torch.tensor([[1.0], [smallest]])
    right = torch.tensor([1 + FP16.eps * 1.2, -smallest])
    got = ulp_distance(left, right, FP16)
    assert got.shape == (2, 2)
    assert got[0, 0].item() == 1.0
    assert got[1, 1].item() == 2.0
    assert ulp_distance(torch.tensor([0.0]), torch.tensor([-0.0]), FP16).item() == 0.0


def test_distance_to_nan_is_nan_and_of_equal_infinities_zero() -> None:
    x = torch.tensor([math.nan, math.inf, math.inf])
    got = ulp_distance(x, torch.tensor([1.0, math.inf, FP16.max]), FP16)
    assert math.isnan(got[0].item())
    assert got[1:].tolist() == [0.0, 1.0]


def test_fp64_neighbours_are_one_apart() -> None:
    fmt = get_format("fp64")
    x = torch.tensor([0.0, 1.0, -2.0, fmt.smallest_normal, fmt.max], dtype=torch.float64)
    up = torch.nextafter(x, torch.full_like(x, math.inf))
    assert ulp_distance(x, up, fmt).tolist() == [1.0] * 5
