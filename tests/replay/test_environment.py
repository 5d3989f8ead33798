"""Taped references as live tensors: geometry, bit views, complex numbers, aliases, memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from replaying import half_parameter, tapes, watch
from torch import Tensor

from fp16doctor.errors import ReplayError
from fp16doctor.replay.environment import Environment, ShapeDiffers
from fp16doctor.replay.lockstep import Observer, last_uses, lockstep
from fp16doctor.replay.player import Player
from fp16doctor.schema.policy import AS_RUN, FP32, FP64, PrecisionPolicy
from fp16doctor.schema.tape import Leaf, Tape, TensorRef

HALF = torch.float16


def ref(
    shape: tuple[int, ...],
    stride: tuple[int, ...] | None = None,
    offset: int = 0,
    dtype: str = "float16",
    storage: int = 1,
) -> TensorRef:
    stride = stride if stride is not None else torch.empty(shape).stride()
    return TensorRef(storage, 0, dtype, shape, stride, offset, "cpu")


def environment(values: Tensor | None = None, policy: PrecisionPolicy = FP32) -> Environment:
    leaves = {}
    if values is not None:
        raw = torch.empty(0, dtype=torch.uint8).set_(values.untyped_storage())
        leaves[1] = Leaf(raw)
    return Environment(Tape(0, (), leaves), policy)


GEOMETRIES = [
    ref((3, 4)),
    ref((4, 3), (1, 4)),  # transposed
    ref((2, 2), (5, 2), 1),  # strided, with an offset
    ref((3, 5), (0, 1)),  # expanded
    ref((3, 4), (2, 1)),  # overlapping
    ref((), (), 7),
    ref((0, 3), (3, 1), 2),
]


@pytest.mark.parametrize("policy", [AS_RUN, FP32, FP64])
@pytest.mark.parametrize("view", GEOMETRIES)
def test_views_keep_their_geometry(view: TensorRef, policy: PrecisionPolicy) -> None:
    values = torch.randn(12).to(HALF)
    tensor = environment(values, policy).tensor(view)
    expected = torch.as_strided(values, view.shape, view.stride, view.offset)
    assert torch.equal(tensor.to(HALF), expected)
    assert tuple(tensor.stride()) == view.stride
    assert (
        tensor.dtype is {"as_run": HALF, "fp32": torch.float32, "fp64": torch.float64}[policy.name]
    )


def test_writing_to_a_view_writes_to_the_storage() -> None:
    env = environment(torch.zeros(12, dtype=HALF))
    env.tensor(ref((4, 3), (1, 4))).copy_(torch.arange(12.0).reshape(4, 3) + 0.0001)
    assert env.tensor(ref((12,)))[4] == pytest.approx(1.0001)  # not rounded to half


def test_storage_nobody_wrote() -> None:
    with pytest.raises(ReplayError, match="broken-tape"):
        environment().tensor(ref((2,)))


def test_bytes_left_over_at_the_end_are_dropped_when_widened() -> None:
    values = torch.zeros(7, dtype=torch.uint8)
    values[:6].view(HALF).copy_(torch.tensor([1.0, 2.0, 3.0]))
    env = environment(values)
    assert env.tensor(ref((3,))).tolist() == [1.0, 2.0, 3.0]


# -- bit views -----------------------------------------------------------------------------------


def test_bit_view_of_a_widened_storage_shows_the_recorded_bits() -> None:
    values = torch.tensor([1.0, -2.5, 65504.0]).to(HALF)
    env = environment(values)
    env.tensor(ref((3,)))
    assert torch.equal(env.tensor(ref((3,), dtype="int16")), values.view(torch.int16))


def test_write_through_a_bit_view_reaches_the_wide_storage() -> None:
    env = environment(torch.tensor([1.0, 2.0, 3.0]).to(HALF))
    env.tensor(ref((3,)))[0] = 1.0001  # a value that half does not have
    bits = ref((2,), offset=1, dtype="int16")
    written = env.tensor(bits)
    written[1] = torch.tensor([9.0]).to(HALF).view(torch.int16)[0]
    env.write_back(bits, written)
    assert env.tensor(ref((3,))).tolist() == pytest.approx([1.0001, 2.0, 9.0], abs=1e-7)


def test_float_view_of_an_integer_storage_can_be_written() -> None:
    tape = Tape(0, (), {})
    env = Environment(tape, FP32)
    whole = ref((3,), dtype="int16")
    env.bind([(whole, torch.zeros(3, dtype=torch.int16))], set())
    halves = env.tensor(ref((3,)))
    halves.fill_(2.0)
    env.write_back(ref((3,)), halves)
    assert torch.equal(env.tensor(whole), torch.full((3,), 2.0, dtype=HALF).view(torch.int16))


def test_other_16_bit_format_is_no_view_of_the_wide_values() -> None:
    values = torch.tensor([1.0, 2.0]).to(HALF)
    env = environment(values)
    env.tensor(ref((2,)))
    as_brain = env.tensor(ref((2,), dtype="bfloat16"))
    assert torch.equal(as_brain.bfloat16(), values.view(torch.bfloat16))


@pytest.mark.parametrize(
    ("policy", "dtype"),
    [(FP32, torch.complex64), (FP64, torch.complex128), (AS_RUN, torch.complex64)],
)
def test_complex_storage_as_pairs(policy: PrecisionPolicy, dtype: torch.dtype) -> None:
    values = torch.randn(5, dtype=torch.complex64)
    env = environment(values, policy)
    whole = env.tensor(ref((5,), dtype="complex64"))
    assert whole.dtype is dtype
    pairs = env.tensor(ref((5, 2), dtype="float32"))
    pairs[3, 1] = 7.0
    assert whole[3].imag == 7.0


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_half_complex_is_widened() -> None:
    values = torch.randn(4, dtype=torch.complex64).to(torch.complex32)
    env = environment(values)
    assert env.tensor(ref((4,), dtype="complex32")).dtype is torch.complex64
    assert env.tensor(ref((4, 2), dtype="float16")).dtype is torch.float32


# -- results -------------------------------------------------------------------------------------


def bound(tensor: Tensor, view: TensorRef, inputs: set[int] | None = None) -> Environment:
    env = Environment(Tape(0, (), {}), AS_RUN)
    env.bind([(view, tensor)], inputs or set())
    return env


def test_result_in_other_strides_is_laid_out_as_recorded() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    view = ref((2, 3), (1, 2), 4, dtype="float32")
    found = bound(tensor, view).tensor(view)
    assert torch.equal(found, tensor)
    assert found.stride() == (1, 2)


def test_expanded_result_is_laid_out_as_recorded() -> None:
    view = ref((3, 2), (0, 1), dtype="float32")
    found = bound(torch.ones(3, 2), view).tensor(view)
    assert torch.equal(found, torch.ones(3, 2))
    assert found.stride() == (0, 1)


def test_result_that_aliases_an_input_is_copied() -> None:
    tensor, view = torch.ones(3), ref((3,), dtype="float32")
    env = bound(tensor, view, {tensor.untyped_storage()._cdata})
    tensor.zero_()
    assert env.tensor(view).tolist() == [1.0, 1.0, 1.0]


def test_two_results_that_alias_each_other_are_parted() -> None:
    tensor = torch.ones(3)
    a, b = ref((3,), dtype="float32"), ref((3,), dtype="float32", storage=2)
    env = Environment(Tape(0, (), {}), AS_RUN)
    env.bind([(a, tensor), (b, tensor)], set())
    env.tensor(a).zero_()
    assert env.tensor(b).tolist() == [1.0, 1.0, 1.0]


def test_nothing_is_bound_if_one_shape_differs() -> None:
    a, b = ref((3,), dtype="float32"), ref((2,), dtype="float32", storage=2)
    env = Environment(Tape(0, (), {}), AS_RUN)
    with pytest.raises(ShapeDiffers, match="came back as"):
        env.bind([(a, torch.ones(3)), (b, torch.ones(4))], set())
    assert not env.has(1)


def test_zero_tensor_of_autograd_gets_memory() -> None:
    view = ref((2,), dtype="float32")
    found = bound(torch._efficientzerotensor((2,)), view).tensor(view)
    found.add_(1)
    assert found.tolist() == [1.0, 1.0]


def test_conjugated_result_is_resolved() -> None:
    value = torch.tensor([1 + 2j])
    view = ref((1,), dtype="complex64")
    assert bound(value.conj(), view).tensor(view).tolist() == [1 - 2j]


# -- sharing and memory --------------------------------------------------------------------------


def three_layers() -> Any:
    w = half_parameter(*[0.5] * 64)
    x = torch.ones(64, dtype=HALF)
    for _ in range(20):
        x = x * w + 1
    x.sum().backward()
    return w


@pytest.mark.parametrize(("policy", "shared"), [(AS_RUN, True), (FP32, False)])
def test_leaves_that_are_never_written_are_shared_as_run_only(
    policy: PrecisionPolicy, shared: bool
) -> None:
    values = torch.ones(4, dtype=HALF)
    tensor = environment(values, policy).tensor(ref((4,)))
    assert (tensor.data_ptr() == values.data_ptr()) is shared


def test_leaf_that_the_step_writes_is_copied() -> None:
    w = torch.ones(4)

    def run() -> None:
        w.add_(1)

    (tape,) = tapes(run)
    player = Player(tape, AS_RUN)
    player.play(tape.ops[0])
    assert player.env.tensor(tape.ops[0].args[0]).tolist() == [2.0] * 4
    assert w.tolist() == [2.0] * 4


class _Count(Observer):
    def __init__(self) -> None:
        self.most = 0

    def after(self, call: Any, run: Player, reference: Player | None) -> None:
        assert reference is not None
        self.most = max(self.most, run.env.live_storages(), reference.env.live_storages())


def test_storages_are_dropped_after_their_last_use() -> None:
    (tape,) = tapes(three_layers)
    count = _Count()
    lockstep(tape, FP32, (count,))
    made = {r for uses in last_uses(tape).values() for r in uses}
    assert len(made) > 60
    assert count.most < 30  # the twenty saved products and a few more


def test_what_the_end_needs_is_kept() -> None:
    (tape,) = tapes(three_layers)
    kept = set(tape.final) | set(tape.gradients) | {m.ref.storage for m in tape.losses}
    dropped = {n for numbers in last_uses(tape).values() for n in numbers}
    assert not kept & dropped
    result = lockstep(tape, FP32)
    for number in tape.final:
        assert result.run.env.has(number)


def test_dtype_of_a_leaf_is_its_floating_one_though_bits_come_first() -> None:
    """The step reads the bits of a half tensor before its values: the reference widens it."""
    w = torch.tensor([1.0, 2.0], dtype=HALF)

    def run() -> Any:
        odd = w.view(torch.int16) & 1
        w.mul_(1.0001)
        return w + odd

    (tape,) = tapes(run)
    result = lockstep(tape, FP32)
    assert result.reference is not None
    out = tape.ops[-1].outputs
    found = result.reference.env.tensor(out) if result.reference.env.has(out.storage) else None
    assert found is not None
    assert found[0] == pytest.approx(1.0001, abs=1e-7)


def test_examining_leaves_global_state_alone() -> None:
    """``watch`` compares all generators and storages; here something draws and writes."""

    def run() -> Any:
        w = torch.rand(3)
        torch.nn.functional.dropout(w, 0.5)
        w.uniform_()
        return w

    assert watch(run).traces[-1].fidelity.bit_equal
