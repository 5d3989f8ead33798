"""Ops in other formats than the recorded ones, and what stands in where they do not run there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from beside import Beside
from replaying import half_parameter, watch
from torch import Tensor
from torch.nn import functional as F

from fp16doctor.replay.lockstep import lockstep
from fp16doctor.schema.policy import FP32, FP64, PrecisionPolicy
from fp16doctor.schema.tape import Tape, refs_in

HALF = torch.float16


# -- the op itself -------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "dtype"), [(FP32, torch.float32), (FP64, torch.float64)])
def test_half_op_runs_wide(policy: PrecisionPolicy, dtype: torch.dtype) -> None:
    w = half_parameter(*[0.1] * 8)
    found = Beside(lambda: torch.outer(w, w) @ w, policy)
    assert found.last()[1].dtype is dtype
    assert found.last()[0].dtype is HALF
    assert found.pins() == {}


def test_quotient_of_integers_has_the_policys_format() -> None:
    def run() -> Any:
        return (torch.arange(1, 4) / 7) @ torch.ones(3)

    found = Beside(run, FP64)
    mine, other = found.outputs("div")
    assert mine[0].dtype is torch.float32
    assert other[0].dtype is torch.float64
    assert found.pins() == {}


def test_dtype_arguments_follow_the_policy() -> None:
    w = torch.randn(5)
    found = Beside(lambda: w.half().sum(dtype=torch.bfloat16))
    assert found.outputs("_to_copy")[1][0].dtype is torch.float32
    assert found.outputs("sum")[1][0].dtype is torch.float32


def test_in_place_on_a_half_tensor() -> None:
    w, x = torch.ones(3, dtype=HALF), torch.full((3,), 1e-4)
    found = Beside(lambda: w.add_(x).mul(1))
    assert found.outputs("mul")[0][0].tolist() == [1.0] * 3
    assert found.outputs("mul")[1][0].tolist() == pytest.approx([1.0001] * 3)


# -- drawn values --------------------------------------------------------------------------------


def test_draws_are_the_runs() -> None:
    found = Beside(lambda: torch.randn(4, dtype=HALF) * 1)
    mine, other = found.outputs("mul")
    assert torch.equal(mine[0].float(), other[0])
    assert found.pins() == {"randn": "random"}


@pytest.mark.parametrize("p", [0.0, 0.4, 1.0])
def test_dropout_takes_the_runs_mask(p: float) -> None:
    x = half_parameter(*[1.0001] * 64)
    found = Beside(lambda: torch.native_dropout(x, p, True)[0])
    mine, other = found.outputs("native_dropout")
    assert torch.equal(mine[1], other[1])
    assert torch.equal(mine[0] == 0, other[0] == 0)
    assert torch.allclose(mine[0].float(), other[0], rtol=2e-3)


def test_dropout_out_of_training_scales_nothing() -> None:
    x = half_parameter(1.0, 2.0)
    found = Beside(lambda: torch.native_dropout(x, 0.5, False)[0])
    assert found.outputs("native_dropout")[1][0].tolist() == [1.0, 2.0]


def test_draw_from_a_generator_of_the_users_leaves_it_alone() -> None:
    generator = torch.Generator().manual_seed(1)

    def run() -> Any:
        x = torch.rand(3, generator=generator)
        return F.rrelu(x - 0.5, training=True) + torch.rand(3, generator=generator)

    seen: list[Tensor] = []

    def look(tape: Tape) -> None:
        before = generator.get_state()
        result = lockstep(tape, FP32)
        assert torch.equal(generator.get_state(), before)
        seen.append(result.run.env.tensor(refs_in(tape.ops[-1].outputs)[0]))

    kept = watch(run, look=look).result
    assert torch.equal(seen[-1], kept)


# -- shapes that depend on values ----------------------------------------------------------------


def picked(x: Tensor) -> Tensor:
    return x[(x * 1.0001) > 1.0]


def test_mask_that_differs_in_the_reference() -> None:
    """In half, 1 · 1.0001 is 1; in the reference it passes the threshold: the run's mask counts."""
    x = torch.tensor([1.0, 2.0, 3.0], dtype=HALF)
    found = Beside(lambda: picked(x) * 1)
    assert found.outputs("index")[1][0].tolist() == [2.0, 3.0]
    assert found.pins() == {"index": "data-dependent shape: indices as in the run"}


def test_write_through_a_mask_that_differs() -> None:
    x, values = torch.tensor([1.0, 2.0, 3.0], dtype=HALF), torch.tensor([9.0, 8.0], dtype=HALF)

    def run() -> Any:
        y = x.clone()
        y[(x * 1.0001) > 1.0] = values
        return y * 1.0001

    found = Beside(run)
    assert found.pins() == {"index_put_": "data-dependent shape: indices as in the run"}
    other = found.last()[1]
    assert other.tolist() == pytest.approx([1.0001, 9.0009, 8.0008])


def test_distinct_values_are_the_runs() -> None:
    x = torch.tensor([1.0, 1.0, 2.0], dtype=HALF)
    found = Beside(
        lambda: (x * torch.tensor([1.0001, 1.0, 1.0], dtype=torch.float64)).half().unique()
    )
    mine, other = found.outputs("_unique2")
    assert mine[0].tolist() == [1.0, 2.0]
    assert other[0].tolist() == [1.0, 2.0]
    assert found.pins() == {"_unique2": "data-dependent shape"}
