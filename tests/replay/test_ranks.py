"""Steps of one of several ranks: DDP and FSDP over gloo, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from replaying import watch
from torch import Tensor, nn
from torch.nn import functional as F

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
