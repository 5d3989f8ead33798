"""16-bit products summed in fp32 and rounded once; other formats as they were."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.simulate.half_arithmetic import OPS, HalfArithmetic
from fp16doctor.simulate.partial_sums import PartialSums

pytestmark = pytest.mark.skipif(
    not hasattr(torch.library, "get_kernel"), reason="this torch cannot call a replaced kernel"
)
HALVES = pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])


@HALVES
def test_products_are_rounded_once(half: torch.dtype) -> None:
    a, b, c = (torch.randn(24, 24).to(half) for _ in range(3))
    with HalfArithmetic():
        mm, addmm, bmm, mv = a @ b, torch.addmm(c, a, b), torch.bmm(a[None], b[None])[0], a @ b[0]
    wide = a.float() @ b.float()
    assert torch.equal(mm, wide.to(half))
    assert torch.equal(bmm, mm)
    assert torch.equal(addmm, torch.addmm(c.float(), a.float(), b.float()).to(half))
    assert torch.equal(mv, (a.float() @ b[0].float()).to(half))


@HALVES
def test_convolutions_forward_and_backward(half: torch.dtype) -> None:
    layer, x = nn.Conv2d(2, 3, 3), torch.randn(2, 2, 6, 6)
    narrow = nn.Conv2d(2, 3, 3).to(half)
    narrow.load_state_dict(layer.state_dict())
    layer.load_state_dict(narrow.state_dict())  # the same numbers in fp32
    with HalfArithmetic():
        out = narrow(x.to(half))
        out.backward(torch.ones_like(out))
    wide = layer(x.to(half).float())
    wide.backward(torch.ones_like(wide))
    assert torch.equal(out, wide.to(half))
    assert narrow.weight.grad is not None
    assert layer.weight.grad is not None
    assert torch.equal(narrow.weight.grad, layer.weight.grad.to(half))


@HALVES
def test_attention_forward_and_backward(half: torch.dtype) -> None:
    q = torch.randn(1, 2, 5, 8).to(half).requires_grad_()
    wide = q.detach().float().requires_grad_()
    with HalfArithmetic():
        out = F.scaled_dot_product_attention(q, q, q)
        out.sum().backward()
    expected = F.scaled_dot_product_attention(wide, wide, wide)
    assert torch.equal(out, expected.to(half))
    assert q.grad is not None
    assert q.grad.dtype is half


def test_recurrent_layers_run_in_fp16() -> None:
    layer, x = nn.LSTM(3, 4), torch.randn(2, 1, 3)
    with HalfArithmetic(), torch.autocast("cpu", torch.float16):
        out = layer(x)[0]
        out.sum().backward()
    assert out.dtype is torch.float16
    torch.testing.assert_close(out.float(), layer(x)[0], rtol=1e-2, atol=1e-3)


def test_fp32_and_fp64_are_left_alone() -> None:
    wide = [torch.randn(9, 9, dtype=dtype) for dtype in (torch.float32, torch.float64)]
    plain = [a @ a for a in wide]
    with HalfArithmetic():
        assert all(torch.equal(a @ a, b) for a, b in zip(wide, plain, strict=True))


def test_an_overflow_stays_one() -> None:
    a = torch.full((1, 8), 200.0).half()
    with HalfArithmetic():
        assert (a @ a.T).isinf().item()  # 320000


def test_the_kernels_are_back_afterwards_and_may_come_again() -> None:
    def kernels() -> list[str]:
        named = (op for op in OPS if hasattr(torch.ops.aten, op))
        return [repr(torch.library.get_kernel(f"aten::{op}", "CPU")) for op in named]

    before, arithmetic = kernels(), HalfArithmetic()
    for _ in range(2):
        with arithmetic:
            assert kernels() != before
        assert kernels() == before


def test_the_largest_bound_of_a_partial_sum_is_kept() -> None:
    arithmetic = HalfArithmetic()
    a, b = torch.full((2, 16), -3.0).half(), torch.full((16, 2), 2.0).half()
    with arithmetic:
        a @ b  # not watched
        arithmetic.watching = True
        a @ b
        a[:, :1] @ b[:1]
        a.bfloat16() @ (b.bfloat16() * 9)
    assert (arithmetic.sums.bound, arithmetic.sums.terms) == (96.0, 16)


@pytest.mark.parametrize("factor", [torch.tensor([[float("inf")]]), torch.zeros(1, 0)])
def test_factors_that_bound_nothing_are_passed_over(factor: Tensor) -> None:
    sums = PartialSums()
    sums.see([factor, torch.ones(factor.shape[1], 1)])
    assert sums.bound == 0.0
