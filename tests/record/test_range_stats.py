"""Range statistics against a slow reference in float64, on every dtype and shape of memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fp16doctor.record import range_cpu, range_device
from fp16doctor.record.binades import LAYOUTS, merge
from fp16doctor.record.range_stats import PendingScreen, measure, plain, range_stats, screen
from fp16doctor.schema.ranges import RangeStats

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
EIGHT_BITS = [
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
    if hasattr(torch, name)
]


def reference(x: Tensor) -> RangeStats:
    """The definition, element by element."""
    x = x.to_dense() if x.layout is not torch.strided else x
    x = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    values = [abs(v) for v in x.detach().double().reshape(-1).tolist()]
    finite = [v for v in values if math.isfinite(v)]
    exponents = Counter(math.frexp(v)[1] - 1 for v in finite if v)
    return RangeStats(
        numel=len(values),
        n_zero=values.count(0.0),
        n_nan=sum(map(math.isnan, values)),
        n_inf=values.count(math.inf),
        amax=max(finite, default=0.0),
        amin_nonzero=min((v for v in values if v > 0), default=math.inf),
        exponents=tuple(sorted(exponents.items())),
        sum_abs=sum(finite),
    )


def on_device(x: Tensor) -> RangeStats | None:
    """The path of an accelerator, taken on the CPU."""
    flat = plain(x)
    assert flat is not None
    layout, flat = LAYOUTS[flat.dtype], flat.reshape(-1)
    vector = range_device.measure(flat, layout)
    return range_device.decode(vector.tolist(), layout, len(flat))


def magnitude(x: Tensor) -> float | None:
    found = screen(x)
    if found is None:
        return None
    return PendingScreen.finish(found.low.item(), found.high.item())


def same(found: RangeStats | None, expected: RangeStats, dtype: torch.dtype) -> None:
    assert found is not None
    total, exact = found.sum_abs, expected.sum_abs
    assert total == pytest.approx(exact, rel=1e-5, abs=0.0 if exact else 1e-300)
    assert RangeStats(*_without_sum(found)) == RangeStats(*_without_sum(expected)), dtype


def _without_sum(s: RangeStats) -> tuple[object, ...]:
    return s.numel, s.n_zero, s.n_nan, s.n_inf, s.amax, s.amin_nonzero, s.exponents


def from_codes(codes: list[int], dtype: torch.dtype) -> Tensor:
    layout = LAYOUTS[dtype]
    span = 2 * layout.sign
    wrapped = [(c % span) - (span if c % span >= layout.sign else 0) for c in codes]
    return torch.tensor(wrapped, dtype=layout.integer).view(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=60, deadline=None)
@given(codes=st.lists(st.integers(0, 2**64 - 1), max_size=40))
def test_any_bit_patterns_agree_with_the_reference(dtype: torch.dtype, codes: list[int]) -> None:
    x = from_codes(codes, dtype)
    same(range_stats(x), reference(x), dtype)
    if codes:
        same(on_device(x), reference(x), dtype)


def _special(dtype: torch.dtype) -> Tensor:
    layout = LAYOUTS[dtype]
    top = 1 << layout.mantissa
    edges = [0, 1, 2, 3, top - 1, top, top + 1, layout.inf - 1, layout.inf, layout.inf + 1]
    return from_codes([*edges, *(layout.sign + e for e in edges)], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_edge_code_of_either_sign(dtype: torch.dtype) -> None:
    x = _special(dtype)
    same(range_stats(x), reference(x), dtype)
    same(on_device(x), reference(x), dtype)
    for one in x:
        same(range_stats(one), reference(one), dtype)
        same(on_device(one), reference(one), dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("zeros", [0, 3, 40_000])
def test_all_codes_of_a_sixteen_bit_dtype(dtype: torch.dtype, zeros: int) -> None:
    x = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    x[: min(zeros, 2**15 - 5)] = 0.0
    x[2**15 + 10 : 2**15 + zeros // 2] = 0.0
    same(range_stats(x), reference(x), dtype)
    same(on_device(x), reference(x), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("special", [False, True])
def test_large_tensors_in_several_pieces(
    dtype: torch.dtype, special: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_cpu, "_CODES_PIECE", 1 << 15)
    monkeypatch.setattr(range_cpu, "_PIECE", 1 << 15)
    monkeypatch.setattr(range_device, "_PIECE", 1 << 15)
    x = (torch.randn(70_001) * 1e-3).to(dtype)
    if special:
        edges = _special(dtype)
        x[::3500][: len(edges)] = edges
    same(range_stats(x), reference(x), dtype)
    same(on_device(x), reference(x), dtype)


@pytest.mark.parametrize("dtype", [*DTYPES, *EIGHT_BITS])
@pytest.mark.parametrize(
    "shape",
    [
        lambda x: x[:0],
        lambda x: x[5],
        lambda x: x[::3],
        lambda x: x.view(8, 8).t(),
        lambda x: x.view(4, 4, 4)[:, 1:3].permute(2, 0, 1),
        lambda x: x.view(1, 4, 4, 4).permute(0, 3, 1, 2),
        lambda x: x[3:4].expand(7, 2),
        lambda x: x.view(8, 8).unfold(1, 3, 2),
        lambda x: torch.nn.Parameter(x) if x.element_size() > 1 else x,
    ],
    ids=[
        "empty",
        "0-d",
        "strided",
        "transposed",
        "inner",
        "channels_last",
        "expanded",
        "overlapping",
        "parameter",
    ],
)
def test_every_shape_of_memory(shape: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    x = shape((torch.randn(64) * 4).to(dtype))
    same(range_stats(x), reference(x), dtype)
    assert magnitude(x) == (reference(x).amax if x.numel() else None)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128])
def test_complex_numbers_count_as_two(dtype: torch.dtype) -> None:
    x = torch.randn(6, 2, dtype=torch.float64).view(torch.complex128).reshape(6).to(dtype)
    for one in (x, x.conj(), x.imag, x.conj().imag, x[0]):
        same(range_stats(one), reference(one), dtype)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_zeros_that_a_sparse_tensor_leaves_out_count(layout: torch.layout) -> None:
    x = torch.tensor([[0.0, 1.5, 0.0], [2.0**-130, 0.0, math.inf]]).to_sparse(layout=layout)
    same(range_stats(x), reference(x), x.dtype)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_an_uncoalesced_gradient_is_summed_first() -> None:
    x = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([3.0, 4.0]), (3,))
    found = range_stats(x)
    assert found is not None
    assert (found.numel, found.n_zero, found.amax) == (3, 2, 7.0)


def test_tensors_without_a_range_have_none() -> None:
    for x in (torch.arange(3), torch.ones(2, dtype=torch.bool), torch.ones(2, device="meta")):
        assert range_stats(x) is None
        assert screen(x) is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_screen_gives_amax_or_what_is_not_finite(dtype: torch.dtype) -> None:
    x = torch.tensor([1.0, -3.5, 0.0], dtype=dtype)
    for bad, expected in ((2.0, 3.5), (-math.inf, math.inf), (math.inf, math.inf)):
        y = torch.cat([x, torch.tensor([bad], dtype=dtype)])
        assert magnitude(y) == expected
    y = torch.cat([x, torch.tensor([-math.nan, math.inf], dtype=dtype)])
    assert math.isnan(magnitude(y) or 0.0)


def test_a_sum_beyond_fp32_is_kept() -> None:
    x = torch.full((4,), 3e38)
    found = range_stats(x)
    assert found is not None
    assert found.sum_abs == pytest.approx(1.2e39, rel=1e-5)


def test_merging_is_measuring_together() -> None:
    a, b = torch.randn(40), torch.tensor([0.0, math.inf, math.nan, 2.0**-140])
    first, second = range_stats(a), range_stats(b)
    assert first is not None
    assert second is not None
    same(merge(first, second), reference(torch.cat([a, b])), a.dtype)


def test_the_tensor_is_left_as_it_was() -> None:
    x = torch.randn(100_000).half().requires_grad_()
    before, version = x.detach().clone(), x._version
    measure(x), screen(x)
    assert torch.equal(x, before)
    assert x._version == version
