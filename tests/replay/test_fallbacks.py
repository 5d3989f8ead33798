"""Kernels of one format, GradScaler's kernel, numbers Python saw, tapes that cannot be played."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from beside import Beside
from replaying import half_parameter, tapes, watch
from torch import Tensor, nn

from fp16doctor.errors import ReplayError
from fp16doctor.replay import op_traits
from fp16doctor.replay.lockstep import lockstep
from fp16doctor.replay.player import Player
from fp16doctor.schema.policy import FP32, FP64, PrecisionPolicy

HALF = torch.float16


# -- kernels of one format -----------------------------------------------------------------------


def test_kernel_that_has_no_wide_form_runs_in_its_own() -> None:
    @torch.library.custom_op("fp16doctor_tests::half_only", mutates_args=())
    def half_only(x: Tensor) -> Tensor:
        if x.dtype is not HALF:
            raise RuntimeError("expected Half")
        return x * 2

    w = half_parameter(1.0, 2.0)
    found = Beside(lambda: half_only(w * 1.0001) + 1)
    assert found.pins() == {"half_only": "runs in its recorded format only"}
    assert found.outputs("add")[1][0].tolist() == [3.0, 5.0]
    assert found.outputs("add")[1][0].dtype is torch.float32


def test_kernel_that_refuses_everything_else_is_taken_from_the_run() -> None:
    calls = []

    @torch.library.custom_op("fp16doctor_tests::twice_only", mutates_args=())
    def twice_only(x: Tensor) -> Tensor:
        calls.append(x)
        if len(calls) > 2:  # the script's call and the replay as run
            raise ValueError("not again")
        return x * 2

    w = half_parameter(1.0, 2.0)
    found = Beside(lambda: twice_only(w) + 1)
    assert found.pins() == {"twice_only": "does not run in fp32: not again"}
    assert found.outputs("add")[1][0].tolist() == [3.0, 5.0]


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

    assert Beside(run).outputs("add")[1][0].tolist() == [3.0, 5.0]


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

    assert Beside(run).outputs("add")[1][0].tolist() == [10.0, 5.0]


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

    found = Beside(run, policy)
    assert found.pins() == {}
    assert found.last()[0].item() == float(bad)
    assert found.last()[1].item() == 0.0  # 1.2e5 is finite in the reference
    unscaled = next(c for c in found.tape.ops if op_traits.is_unscale(c.op)).args[0][0]
    other = found.reference.env.tensor(unscaled)
    assert other.tolist() == [1.0, 3e4 if bad else 0.5]


def test_unscale_notices_what_is_not_finite_in_the_reference_either() -> None:
    gradient, found_inf = torch.tensor([float("inf"), 1.0]), torch.zeros(1)

    def run() -> Any:
        scaled = gradient * 2
        torch._amp_foreach_non_finite_check_and_unscale_([scaled], found_inf, torch.tensor([0.5]))
        return scaled, found_inf * 1

    found = Beside(run, FP64)
    assert found.last()[1].item() == 1.0


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

    assert Beside(run).result.scalars_differ == differ


def test_truth_that_python_saw_is_compared() -> None:
    x = torch.tensor([300.0], dtype=HALF)
    found = Beside(lambda: bool((x * x).isfinite().all()))
    assert found.result.scalars_differ == 1


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

    assert Beside(run).outputs("add")[1][0].tolist() == [2.0, 3.0, 5.0]
