"""The tape: its ops, its leaves, values that something unseen has written."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from watched import Record, Watched, short

from fp16doctor.record.op_info import op_info
from fp16doctor.schema.tape import Leaf, Tape, refs_in


def renumbered(tape: Tape) -> list[str]:
    """The listing with storages numbered in order of appearance."""
    numbers: dict[int, str] = {}
    for op in tape.ops:
        for ref in refs_in((op.args, op.kwargs, op.outputs)):
            numbers.setdefault(ref.storage, str(len(numbers) + 1))
    lines = tape.listing()
    for number in sorted(numbers, reverse=True):
        lines = [line.replace(f"${number}", f"$#{numbers[number]}") for line in lines]
    return [line.replace("$#", "$") for line in lines]


def values(leaf: Leaf, dtype: torch.dtype = torch.float32) -> list[float]:
    found: list[float] = leaf.data.view(dtype).tolist()
    return found


def leaf_named(tape: Tape, name: str) -> Leaf:
    (found,) = [leaf for leaf in tape.leaves.values() if leaf.name == name]
    return found


def test_a_listing(record: Record) -> None:
    def run() -> None:
        model = nn.Linear(2, 1).half()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        x = torch.ones(3, 2, dtype=torch.float16)
        loss = model(x).sum()
        loss.backward()
        optimizer.step()

    (tape,) = record(run).tapes
    assert renumbered(tape) == [
        "$1: f16[3, 2] = aten.ones.default([3, 2], dtype=torch.float16, device=cpu, "
        "pin_memory=False)",
        "$4: f16[3, 1] = aten.addmm.default($2, $1, $3)",
        "$5: f16[] = aten.sum.default($4)",
        "$6: f16[] = aten.ones_like.default($5, pin_memory=False, "
        "memory_format=torch.preserve_format)",
        "$7: f16[1, 2] = aten.mm.default($6, $1)",
        "$8: f16[1, 1] = aten.sum.dim_IntList($6, [0], True)",
        "$3.1: f16[1, 2] = aten.add_.Tensor($3, $7, alpha=-0.5)",
        "$2.1: f16[1] = aten.add_.Tensor($2, $8, alpha=-0.5)",
    ]
    (loss,) = tape.losses
    assert str(loss.ref) == str(refs_in(tape.ops[2].outputs)[0])
    assert loss.index == 3
    assert tape.backward_ends == (6,)
    assert (tape.optimizer_at, tape.attempt) == (6, 8)
    assert sorted(tape.gradients.values()) == ["bias", "weight"]


def test_leaves_are_copied_before_the_first_write(record: Record) -> None:
    def run() -> tuple[list[float], list[float]]:
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        before = model[0].weight.flatten().tolist()
        loss = model(torch.randn(3, 2)).square().sum()
        loss.backward()
        optimizer.step()
        return before, model[0].weight.flatten().tolist()

    seen = record(run)
    (tape,) = seen.tapes
    before, after = seen.result
    weight = leaf_named(tape, "0.weight")
    assert values(weight) == before != after
    assert weight.is_parameter
    assert not weight.is_buffer
    assert values(leaf_named(tape, "1.running_mean")) == [0.0, 0.0]
    assert leaf_named(tape, "1.running_mean").is_buffer
    (number,) = [n for n, leaf in tape.leaves.items() if leaf is weight]
    assert tape.final[number].view(torch.float32).tolist() == after


def test_a_parameter_that_is_only_read_is_kept_by_reference(record: Record) -> None:
    model = nn.Linear(600, 600)

    def run() -> None:
        optimizer = torch.optim.SGD([model.bias], lr=0.1)
        model(torch.randn(1, 600)).sum().backward()
        optimizer.step()

    (tape,) = record(run).tapes
    assert leaf_named(tape, "weight").data.data_ptr() == model.weight.data_ptr()
    assert leaf_named(tape, "bias").data.data_ptr() != model.bias.data_ptr()


def test_memory_that_something_unseen_has_written(record: Record) -> None:
    """The tape has ``empty`` only; what it held is kept at its first read."""

    def run() -> None:
        w = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        x = torch.empty(3)
        x.numpy()[:] = np.array([1.0, 2.0, 3.0])
        (w * x).sum().backward()
        optimizer.step()

    (tape,) = record(run).tapes
    (empty,) = [op for op in tape.ops if short(op.op) == "empty"]
    storage = refs_in(empty.outputs)[0].storage
    (kept,) = [v for (_, number), v in tape.snapshots.items() if number == storage]
    assert kept.view(torch.float32).tolist() == [1.0, 2.0, 3.0]


def test_memory_that_a_taped_op_has_written_needs_no_snapshot(record: Record) -> None:
    def run() -> None:
        w = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        x = torch.empty(3).copy_(torch.ones(3)) + torch.empty(3).fill_(2) + torch.empty(3).normal_()
        out = torch.empty(3)
        torch.add(x, 1, out=out)
        (w * out).sum().backward()
        optimizer.step()

    (tape,) = record(run).tapes
    assert not tape.snapshots


def test_what_a_collective_has_written(record: Record) -> None:
    """Its result is kept; the group's handles are not."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def run() -> None:
        w = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        (w * torch.arange(3.0)).sum().backward()
        dist.all_reduce(w.grad)
        optimizer.step()

    try:
        (tape,) = record(run).tapes
    finally:
        dist.destroy_process_group()
    (reduce,) = [op for op in tape.ops if short(op.op) == "allreduce_"]
    assert reduce.opaque
    plain = (int, float, bool, str, type(None))
    held = [a for a in reduce.args if not refs_in(a) and not isinstance(a, plain)]
    assert {type(a).__name__ for a in held} == {"Held"}
    (kept,) = tape.snapshots.values()
    assert kept.view(torch.float32).tolist() == [0.0, 1.0, 2.0]


def test_a_random_op_has_its_generators_state(record: Record) -> None:
    own = torch.Generator().manual_seed(5)

    def run() -> tuple[Tensor, Tensor]:
        w = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        torch.manual_seed(11)
        common, private = torch.get_rng_state(), own.get_state()
        x = torch.rand(3)
        y = torch.rand(3, generator=own)
        (w * x * y).sum().backward()
        optimizer.step()
        return common, private

    seen = record(run)
    first, second = [op for op in seen.ops if short(op.op) == "rand"]
    assert (first.generator, second.generator) == (None, "cpu")
    assert torch.equal(first.rng, seen.result[0])
    assert torch.equal(second.rng, seen.result[1])
    assert all(op.rng is None for op in seen.ops if short(op.op) == "mul")


def test_ops_that_the_step_does_not_need_are_left_out(record: Record) -> None:
    def run() -> None:
        noise = torch.randn(3).tanh()
        used = torch.randn(3).sigmoid()
        w = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        (w * used).sum().backward()
        optimizer.step()
        del noise

    names = [short(op.op) for op in record(run).ops]
    assert "sigmoid" in names
    assert "tanh" not in names


# -- ops -----------------------------------------------------------------------------------------


def test_facts_of_ops() -> None:
    aten = torch.ops.aten
    assert op_info(aten.view.default).alias
    assert not op_info(aten._unsafe_view.default).alias
    assert op_info(aten.add_.Tensor).written_args == (0,)
    assert op_info(aten.add.out).written_kwargs == ("out",)
    assert op_info(aten.add.out).overwrites
    assert op_info(aten.native_batch_norm.default).written_args == (3, 4)
    assert op_info(aten._foreach_add_.List).written_args == (0,)
    assert op_info(aten.randn.default).random
    assert op_info(aten.empty.memory_format).uninitialised
    assert op_info(torch.ops.higher_order.cond).opaque
    assert op_info(aten.mm.default) is op_info(aten.mm.default)


def test_refs_in_foreach_ops(record: Record) -> None:
    def run() -> None:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
        for _ in range(2):
            model(torch.randn(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    seen: Watched = record(run)
    (decay,) = [op for op in seen.tapes[1].ops if op.op == "aten._foreach_mul_.Scalar"][:1]
    assert len(decay.mutates) == 2
    assert decay.outputs is None
