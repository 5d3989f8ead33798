"""The screen against a slow reference, in every format and geometry."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fp16doctor.record.roll import RawOp, Roll
from fp16doctor.record.screen import (
    FINITE,
    HAS_INF,
    HAS_NAN,
    ON_CPU,
    code_of,
    exact,
    extremes,
    screen,
)

REAL = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
EIGHT = [torch.float8_e5m2, torch.float8_e4m3fn]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]


def reference(tensor: Tensor) -> int:
    parts = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    numbers = parts.double().flatten().tolist()
    if any(map(math.isnan, numbers)):
        return HAS_NAN
    return HAS_INF if any(map(math.isinf, numbers)) else FINITE


def with_values(dtype: torch.dtype, values: list[float], n: int = 37) -> Tensor:
    tensor = torch.linspace(-1, 1, n, dtype=torch.float64)
    for place, value in enumerate(values):
        tensor[(7 * place + 3) % n] = value
    if dtype.is_complex:
        return torch.complex(torch.zeros(n, dtype=torch.float64), tensor).to(dtype)
    return tensor.to(dtype)


CASES = [[], [math.inf], [-math.inf], [math.nan], [math.inf, -math.inf], [math.inf, math.nan]]


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("values", CASES, ids=str)
@pytest.mark.parametrize("dtype", [*REAL, *EIGHT, *COMPLEX], ids=str)
def test_every_format(dtype: torch.dtype, values: list[float]) -> None:
    if dtype is torch.float8_e4m3fn and any(map(math.isinf, values)):
        values = [math.nan]  # it has no infinity
    tensor = with_values(dtype, values)
    assert screen(tensor) == exact(tensor) == reference(tensor)
    assert screen(tensor[::3]) == reference(tensor[::3])


@pytest.mark.parametrize("values", CASES, ids=str)
def test_every_geometry(values: list[float]) -> None:
    tensor = with_values(torch.float16, values, n=64).reshape(4, 4, 4)
    views = [tensor.permute(2, 0, 1), tensor[:, 1:3, ::2], tensor[0, 0].expand(5, 4), tensor[1, 1]]
    views += [tensor[0, 0, 3], tensor[:0], tensor.reshape(-1)[3:4], tensor[None]]
    for view in views:
        assert screen(view) == reference(view)


def test_views_of_complex_numbers() -> None:
    tensor = with_values(torch.complex64, [math.inf])
    for view in (tensor.conj(), tensor.imag, tensor.conj().imag, torch.view_as_real(tensor)):
        assert screen(view) == HAS_INF
    assert screen(tensor.real) == FINITE


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_that_overflows_is_finite(dtype: torch.dtype, sign: int) -> None:
    largest = torch.full((4,), sign * torch.finfo(dtype).max, dtype=dtype)
    if dtype is not torch.bfloat16:
        assert not torch.isfinite(largest.sum())
    assert screen(largest) == FINITE


def test_sums_that_cancel_hide_nothing() -> None:
    assert screen(torch.tensor([math.inf, -math.inf, 1.0])) == HAS_INF
    assert screen(torch.tensor([65504.0, 65504.0, -math.inf], dtype=torch.float16)) == HAS_INF


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8], ids=str)
def test_integers_are_not_looked_at(dtype: torch.dtype) -> None:
    assert dtype not in ON_CPU
    assert screen(torch.ones(3, dtype=dtype)) == FINITE


def test_tensors_without_memory() -> None:
    assert screen(torch.empty(3, device="meta")) == FINITE
    assert extremes(torch.empty(3, device="meta")) is None
    assert extremes(torch.empty(0)) is None


@pytest.mark.parametrize("values", CASES, ids=str)
@pytest.mark.parametrize("dtype", [*REAL, *COMPLEX], ids=str)
def test_extremes_tell_the_same(dtype: torch.dtype, values: list[float]) -> None:
    """What is read back from a device at the end of a step."""
    tensor = with_values(dtype, values)
    found = extremes(tensor)
    assert found is not None
    assert code_of(found[0].item(), found[1].item()) == reference(tensor)


def test_flags_are_read_together() -> None:
    """As on a device: pending extremes of several ops, numbers of the script among them."""
    roll = Roll(step=0, copy_cap=0)
    ops = [RawOp(None, [], {}, None) for _ in range(4)]  # type: ignore[arg-type]
    for number, (op, values) in enumerate(zip(ops, ([], [math.inf], [math.nan], []), strict=True)):
        tensor = with_values(torch.float16 if number % 2 else torch.float32, values)
        found = extremes(tensor)
        assert found is not None
        roll.pending.append((op, number, tensor.nbytes, *found))
    extra = [torch.tensor(2.5), torch.tensor([65536.0])]
    assert roll.read_flags(extra) == [[2.5], [65536.0]]
    assert [op.code for op in ops] == [FINITE, HAS_INF, HAS_NAN, FINITE]
    assert ops[1].sick == [(1, HAS_INF, 74)]
    assert roll.n_flagged == 2
    assert roll.read_flags([]) == []


@pytest.mark.gpu
def test_a_step_on_a_gpu(record: object) -> None:
    """One birth on the device, found by its flags at the end of the step."""

    def run() -> None:
        model = torch.nn.Linear(4, 4, device="cuda", dtype=torch.float16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            out = model(torch.ones(2, 4, device="cuda", dtype=torch.float16))
            ((out * 0 + 60000) * 2).clamp(-1, 1).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    seen = record(run)  # type: ignore[operator]
    assert [[b.key[0] for b in found] for found in seen.births] == [["aten.mul.Tensor"]] * 2
    assert seen.recorder.devices == {torch.device("cuda", 0)}
