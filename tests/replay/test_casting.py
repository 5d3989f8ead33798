"""Ops in other formats than the recorded ones, and what stands in where they do not run there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from replaying import half_parameter, tapes, watch
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.errors import ReplayError
from fp16doctor.replay import op_traits
from fp16doctor.replay.lockstep import LockstepResult, Observer, lockstep
from fp16doctor.replay.player import Player
from fp16doctor.schema.policy import FP32, FP64, PrecisionPolicy
from fp16doctor.schema.tape import OpCall, Tape, refs_in

HALF = torch.float16


class _Keep(Observer):
    """Keeps every output of both runs."""

    def __init__(self) -> None:
        self.mine: dict[int, list[Tensor]] = {}
        self.other: dict[int, list[Tensor]] = {}

    def after(self, call: OpCall, run: Player, reference: Player | None) -> None:
        assert reference is not None
        refs = refs_in(call.outputs)
        self.mine[call.index] = [run.env.tensor(r).clone() for r in refs]
        self.other[call.index] = [reference.env.tensor(r).clone() for r in refs]


def replay(
    function: Callable[[], Any], policy: PrecisionPolicy = FP32
) -> tuple[Tape, _Keep, LockstepResult]:
    (tape,) = tapes(function)
    keep = _Keep()
    return tape, keep, lockstep(tape, policy, (keep,))


def outputs(
    found: tuple[Tape, _Keep, LockstepResult], op: str
) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs of the only op of a name: as run, in the reference."""
    tape, keep, _ = found
    (index,) = [c.index for c in tape.ops if op_traits.base(c.op) == op]
    return keep.mine[index], keep.other[index]


def pins(found: tuple[Tape, _Keep, LockstepResult]) -> dict[str, str]:
    reference = found[2].reference
    assert reference is not None
    return {op_traits.base(op): reason for op, reason in reference.pinned.items()}


# -- the op itself -------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "dtype"), [(FP32, torch.float32), (FP64, torch.float64)])
def test_half_op_runs_wide(policy: PrecisionPolicy, dtype: torch.dtype) -> None:
    w = half_parameter(*[0.1] * 8)
    found = replay(lambda: torch.outer(w, w) @ w, policy)
    for _, other in (outputs(found, op) for op in ("mul", "mv") if _has(found, op)):
        assert other[0].dtype is dtype
    assert pins(found) == {}


def _has(found: tuple[Tape, _Keep, LockstepResult], op: str) -> bool:
    return any(op_traits.base(c.op) == op for c in found[0].ops)


def test_quotient_of_integers_has_the_policys_format() -> None:
    def run() -> Any:
        return (torch.arange(1, 4) / 7) @ torch.ones(3)

    found = replay(run, FP64)
    mine, other = outputs(found, "div")
    assert mine[0].dtype is torch.float32
    assert other[0].dtype is torch.float64
    assert pins(found) == {}


def test_dtype_arguments_follow_the_policy() -> None:
    w = torch.randn(5)
    found = replay(lambda: w.half().sum(dtype=torch.bfloat16))
    assert outputs(found, "_to_copy")[1][0].dtype is torch.float32
    assert outputs(found, "sum")[1][0].dtype is torch.float32


def test_in_place_on_a_half_tensor() -> None:
    w, x = torch.ones(3, dtype=HALF), torch.full((3,), 1e-4)
    found = replay(lambda: w.add_(x).mul(1))
    assert outputs(found, "mul")[0][0].tolist() == [1.0] * 3
    assert outputs(found, "mul")[1][0].tolist() == pytest.approx([1.0001] * 3)


# -- drawn values --------------------------------------------------------------------------------


def test_draws_are_the_runs() -> None:
    found = replay(lambda: torch.randn(4, dtype=HALF) * 1)
    mine, other = outputs(found, "mul")
    assert torch.equal(mine[0].float(), other[0])
    assert pins(found) == {"randn": "random"}


@pytest.mark.parametrize("p", [0.0, 0.4, 1.0])
def test_dropout_takes_the_runs_mask(p: float) -> None:
    x = half_parameter(*[1.0001] * 64)
    found = replay(lambda: torch.native_dropout(x, p, True)[0])
    mine, other = outputs(found, "native_dropout")
    assert torch.equal(mine[1], other[1])
    assert torch.equal(mine[0] == 0, other[0] == 0)
    assert torch.allclose(mine[0].float(), other[0], rtol=2e-3)


def test_dropout_out_of_training_scales_nothing() -> None:
    x = half_parameter(1.0, 2.0)
    found = replay(lambda: torch.native_dropout(x, 0.5, False)[0])
    assert outputs(found, "native_dropout")[1][0].tolist() == [1.0, 2.0]


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
    found = replay(lambda: picked(x) * 1)
    assert outputs(found, "index")[1][0].tolist() == [2.0, 3.0]
    assert pins(found) == {"index": "data-dependent shape: indices as in the run"}


def test_write_through_a_mask_that_differs() -> None:
    x, values = torch.tensor([1.0, 2.0, 3.0], dtype=HALF), torch.tensor([9.0, 8.0], dtype=HALF)

    def run() -> Any:
        y = x.clone()
        y[(x * 1.0001) > 1.0] = values
        return y * 1.0001

    found = replay(run)
    assert pins(found) == {"index_put_": "data-dependent shape: indices as in the run"}
    other = found[1].other[found[0].ops[-1].index][0]
    assert other.tolist() == pytest.approx([1.0001, 9.0009, 8.0008])


def test_distinct_values_are_the_runs() -> None:
    x = torch.tensor([1.0, 1.0, 2.0], dtype=HALF)
    found = replay(
        lambda: (x * torch.tensor([1.0001, 1.0, 1.0], dtype=torch.float64)).half().unique()
    )
    mine, other = outputs(found, "_unique2")
    assert mine[0].tolist() == [1.0, 2.0]
    assert other[0].tolist() == [1.0, 2.0]
    assert pins(found) == {"_unique2": "data-dependent shape"}


# -- kernels of one format -----------------------------------------------------------------------


def test_kernel_that_has_no_wide_form_runs_in_its_own() -> None:
    @torch.library.custom_op("fp16doctor_tests::half_only", mutates_args=())
    def half_only(x: Tensor) -> Tensor:
        if x.dtype is not HALF:
            raise RuntimeError("expected Half")
        return x * 2

    w = half_parameter(1.0, 2.0)
    found = replay(lambda: half_only(w * 1.0001) + 1)
    assert pins(found) == {"half_only": "runs in its recorded format only"}
    assert outputs(found, "add")[1][0].tolist() == [3.0, 5.0]
    assert outputs(found, "add")[1][0].dtype is torch.float32


def test_kernel_that_refuses_everything_else_is_taken_from_the_run() -> None:
    calls = []

    @torch.library.custom_op("fp16doctor_tests::twice_only", mutates_args=())
    def twice_only(x: Tensor) -> Tensor:
        calls.append(x)
        if len(calls) > 2:  # the script's call and the replay as run
            raise ValueError("not again")
        return x * 2

    w = half_parameter(1.0, 2.0)
    found = replay(lambda: twice_only(w) + 1)
    assert pins(found) == {"twice_only": "does not run in fp32: not again"}
    assert outputs(found, "add")[1][0].tolist() == [3.0, 5.0]


def test_in_place_kernel_of_one_format_writes_the_wide_storage() -> None:
    @torch.library.custom_op("fp16doctor_tests::half_only_", mutates_args=("x",))
    def half_only_(x: Tensor) -> None:
        if x.dtype is not HALF:
            raise RuntimeError("expected Half")
        x.mul_(2)

    w = torch.tensor([1.0, 2.0], dtype=HALF)

    def run() -> Any:
        y = w * 1
        half_only_(y)
        return y + 1

    assert outputs(replay(run), "add")[1][0].tolist() == [3.0, 5.0]


def test_argument_that_is_given_twice_is_one_tensor() -> None:
    @torch.library.custom_op("fp16doctor_tests::half_product_", mutates_args=("x",))
    def half_product_(x: Tensor, y: Tensor) -> None:
        if x.dtype is not HALF:
            raise RuntimeError("expected Half")
        x.mul_(y)

    w = torch.tensor([3.0, 2.0], dtype=HALF)

    def run() -> Any:
        y = w * 1
        half_product_(y, y)
        return y + 1

    assert outputs(replay(run), "add")[1][0].tolist() == [10.0, 5.0]


# -- GradScaler ----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [FP32, FP64])
@pytest.mark.parametrize("bad", [False, True])
def test_unscale_in_any_format(policy: PrecisionPolicy, bad: bool) -> None:
    gradients = [torch.tensor([2.0, 6e4 if bad else 1.0], dtype=HALF), torch.tensor([8.0])]
    found_inf, inverse = torch.zeros(1), torch.tensor([0.25])

    def run() -> Any:
        scaled = [gradients[0] * 2, gradients[1] * 2]
        torch._amp_foreach_non_finite_check_and_unscale_([scaled[0]], found_inf, inverse)
        torch._amp_foreach_non_finite_check_and_unscale_([scaled[1]], found_inf, inverse)
        return scaled, found_inf * 1

    found = replay(run, policy)
    result = found[2]
    assert result.reference is not None
    assert pins(found) == {}
    last = found[0].ops[-1].index
    assert found[1].mine[last][0].item() == float(bad)
    assert found[1].other[last][0].item() == 0.0  # 1.2e5 is finite in the reference
    unscaled = next(c for c in found[0].ops if op_traits.is_unscale(c.op)).args[0][0]
    other = result.reference.env.tensor(unscaled)
    assert other.tolist() == [1.0, 3e4 if bad else 0.5]


def test_unscale_notices_what_is_not_finite_in_the_reference_either() -> None:
    gradient, found_inf = torch.tensor([float("inf"), 1.0]), torch.zeros(1)

    def run() -> Any:
        scaled = gradient * 2
        torch._amp_foreach_non_finite_check_and_unscale_([scaled], found_inf, torch.tensor([0.5]))
        return scaled, found_inf * 1

    found = replay(run, FP64)
    assert found[1].other[found[0].ops[-1].index][0].item() == 1.0


# -- numbers that Python saw ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "differ"),
    [
        ((1.0, 2.0), 0),
        ((300.0, 300.0), 1),  # inf as run, 180000 in the reference
        ((float("nan"), 1.0), 0),  # NaN in both
        ((float("inf"), 1.0), 0),
        ((1e-4, 1e-4), 1),  # 0 as run, 2e-8 in the reference
    ],
)
def test_scalars_that_python_saw_are_compared(values: tuple[float, ...], differ: int) -> None:
    x = torch.tensor(values, dtype=HALF)

    def run() -> float:
        return (x * x).sum().item()

    assert replay(run)[2].scalars_differ == differ


def test_truth_that_python_saw_is_compared() -> None:
    x = torch.tensor([300.0], dtype=HALF)
    found = replay(lambda: bool((x * x).isfinite().all()))
    assert found[2].scalars_differ == 1


# -- tapes that cannot be played -----------------------------------------------------------------


def test_op_that_fails_as_run_is_named() -> None:
    w = half_parameter(1.0)
    (tape,) = tapes(lambda: w * 2)
    broken = replace(tape.ops[0], args=(tape.ops[0].args[0],))
    with pytest.raises(ReplayError, match=r"aten\.mul\.Tensor.*op 0.*replay-failed"):
        lockstep(replace(tape, ops=(broken,)), None)


def test_op_that_this_torch_does_not_have() -> None:
    w = half_parameter(1.0)
    (tape,) = tapes(lambda: w * 2)
    unknown = replace(tape.ops[0], op="aten.gone.default")
    with pytest.raises(ReplayError, match="unknown-op"):
        lockstep(replace(tape, ops=(unknown,)), None)


def test_flag_for_a_wide_softmax_of_half_is_unset_where_the_input_is_wide() -> None:
    w = half_parameter(1.0, 2.0)
    (tape,) = tapes(lambda: torch.softmax(w, 0))
    call = tape.ops[0]
    flagged = replace(call, args=(call.args[0], call.args[1], True))
    player, partner = Player(tape, FP32), Player(tape, FP32)
    player.play(flagged, partner)
    assert player.pinned == {}
    assert player.env.tensor(call.outputs).dtype is torch.float32


def test_recurrent_layer_keeps_its_workspace() -> None:
    model = nn.LSTM(3, 4)

    def run() -> Any:
        model(torch.ones(2, 1, 3))[0].sum().backward()

    seen = watch(run)
    assert seen.trained[0].fidelity.bit_equal
    assert not seen.trained[0].opaque


def test_view_that_is_only_read_does_not_undo_what_was_written_beside_it() -> None:
    @torch.library.custom_op("fp16doctor_tests::half_shift_", mutates_args=("x",))
    def half_shift_(x: Tensor, y: Tensor) -> None:
        if x.dtype is not HALF:
            raise RuntimeError("expected Half")
        x.copy_(y.clone() * 2)

    w = torch.tensor([1.0, 2.0, 3.0], dtype=HALF)

    def run() -> Any:
        y = w * 1
        half_shift_(y[1:], y[:-1])
        return y + 1

    assert outputs(replay(run), "add")[1][0].tolist() == [2.0, 3.0, 5.0]
