"""Steps of one of several ranks: DDP and FSDP over gloo, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from replaying import tapes, watch
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.replay.solo import SoloPlayer
from fp16doctor.schema.policy import AS_RUN, FP32, PrecisionPolicy
from fp16doctor.schema.tape import refs_in

LARGE = 1e3


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(tmp_path / "store")), rank=0, world_size=1
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


class Net(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 2)
        with torch.no_grad():
            self.up.weight.mul_(factor)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.relu(self.up(x)).square())
        return out


def fsdp(model: Net) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (1,))
    policy = MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float32)
    fully_shard(model.up, mesh=mesh, mp_policy=policy)
    wrapped: Any = fully_shard(model, mesh=mesh, mp_policy=policy)
    return wrapped  # type: ignore[no-any-return]


def training(wrap: Any, factor: float = 1.0) -> Any:
    def run() -> list[float]:
        torch.manual_seed(0)
        model = wrap(Net(factor))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        losses = []
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(torch.randn(3, 4)).float().square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    return run


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("wrap", [nn.parallel.DistributedDataParallel, fsdp])
class TestOneRank:
    def test_the_replay_is_bit_equal(self, wrap: Any) -> None:
        """Gathered weights are freed between two uses; nothing is read where they were."""
        seen = watch(training(wrap))
        assert [t.fidelity.bit_equal for t in seen.traces] == [True, True]

    def test_the_run_has_the_losses_it_has_alone(self, wrap: Any) -> None:
        assert watch(training(wrap)).result == training(wrap)()

    def test_an_overflow_reaches_the_parameters_by_their_names(self, wrap: Any) -> None:
        def run() -> Any:
            with torch.autocast("cpu", torch.float16):
                return training(wrap, LARGE)()

        seen = watch(run)
        first = seen.traces[0]
        assert {"loss", "parameters"} <= set(first.events[0].reaches)
        given = {p.name for p in seen.traces[1].poisons if p.is_parameter}
        assert given & {"up.weight", "down.weight"}


# -- several ranks -------------------------------------------------------------------------------


@pytest.fixture
def four() -> Iterator[None]:
    """A fake group of four, whose collectives leave everything as it is."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    try:
        yield
    finally:
        dist.destroy_process_group()


def summed(inputs: Tensor) -> Any:
    """A linear model whose product overflows in fp16 where ``inputs`` are large."""

    def run() -> None:
        w = torch.ones(2, 1, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        with torch.autocast("cpu", torch.float16):
            loss = (inputs @ w).square().sum()
        loss.backward()
        dist.all_reduce(w.grad)
        optimizer.step()

    return run


def gradient_of_replay(run: Any, policy: PrecisionPolicy) -> list[float]:
    (tape,) = tapes(run)
    player = SoloPlayer(tape, policy)
    for call in tape.ops:
        player.play(call)
    (reduce,) = [c for c in tape.ops if c.op.startswith("c10d.allreduce_")]
    (ref, *_) = refs_in(reduce.args)
    return [float(x) for x in player.env.tensor(ref).flatten()]


@pytest.mark.usefixtures("four")
class TestFourRanks:
    def test_a_sum_lost_in_the_run_is_this_ranks_share_times_four(self) -> None:
        run = summed(torch.full((1, 2), 2.0**7))
        assert gradient_of_replay(run, AS_RUN) == [float("inf")] * 2
        assert gradient_of_replay(run, FP32) == [4 * 2 * 2.0**8 * 2.0**7] * 2

    def test_a_finite_sum_is_taken_from_the_run(self) -> None:
        run = summed(torch.ones(1, 2))
        assert gradient_of_replay(run, FP32) == gradient_of_replay(run, AS_RUN) == [4.0] * 2

    def test_the_tape_says_how_many_ranks_there_were(self) -> None:
        (tape,) = tapes(summed(torch.ones(1, 2)))
        found = [c.kwargs["ranks"] for c in tape.ops if c.op.startswith("c10d.")]
        assert found == [4]
