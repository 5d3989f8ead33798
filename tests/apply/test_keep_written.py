"""What is written inside a kept block arrives: through ``out``, through views, and by autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fp16doctor.apply.keep_fp32 import keep_fp32

HALF = torch.float16


@pytest.fixture
def large() -> Tensor:
    """Its square, 90000, is no fp16 number."""
    return torch.full((2, 2), 300.0, dtype=HALF)


def test_results_go_where_out_says(large: Tensor) -> None:
    place, other = torch.zeros(2, 2, dtype=HALF), torch.zeros(3, dtype=HALF)
    values, indices = torch.zeros(2, dtype=HALF), torch.zeros(2, dtype=torch.long)
    with keep_fp32():
        assert torch.mul(large, large, out=place) is place
        torch.add(large[0], 1, out=other[:2])
        torch.max(large, 1, out=(values, indices))
    assert (place.dtype, place[0, 0].item()) == (torch.float32, 90000.0)
    assert (other.dtype, other.tolist()) == (HALF, [301.0, 301.0, 0.0])
    assert values.tolist() == [300.0, 300.0]


def test_what_is_written_into_a_view_reaches_the_whole(large: Tensor) -> None:
    whole = torch.zeros(4, 4, dtype=HALF)
    with keep_fp32():
        whole[:2, :2].copy_(large)
        whole.t()[3].add_(1)
        whole.narrow(0, 3, 1)[0].fill_(2)
        whole.view(-1)[5] *= 2
        first, _ = whole.chunk(2)
        first[0].sub_(300)
    assert whole.tolist() == [[0, 0, -300, -299], [300, 600, 0, 1], [0, 0, 0, 1], [2, 2, 2, 2]]
    assert whole.dtype is HALF


def test_views_are_computed_on_in_fp32(large: Tensor) -> None:
    with keep_fp32():
        product = large[0] * large.t()[1]
        first, second = large.unbind()
        assert (first * second).dtype is product.dtype is torch.float32
    assert product.tolist() == [90000.0, 90000.0]


def test_a_function_returns_fp32_where_it_only_looks(large: Tensor) -> None:
    @keep_fp32
    def first(x: Tensor) -> dict[str, Tensor]:
        return {"row": x[0], "count": torch.ones(1, dtype=torch.long)}

    assert {k: v.dtype for k, v in first(large).items()} == {
        "row": torch.float32,
        "count": torch.long,
    }
    assert first.__name__ == "first"


def test_a_gradient_is_asked_for_inside(large: Tensor) -> None:
    leaf = large.clone().requires_grad_()
    with keep_fp32():
        (gradient,) = torch.autograd.grad((leaf * leaf * 2**-9).sum(), leaf)
    assert gradient.dtype is HALF
    assert gradient[0, 0].item() == 600 * 2**-9
