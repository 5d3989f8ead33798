"""One of two processes that train a model with a kept module; run by test_keep_two_processes.py.

Arguments: rank, file of the store. Prints one JSON line.
"""

import copy
import json
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fp16doctor.apply.keep_fp32 import keep_fp32

RANKS = 2
WIDE, LOW = torch.float32, torch.bfloat16


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))


def batch(rank: int) -> Tensor:
    return torch.linspace(-1, 1 + rank, 8).reshape(2, 4)


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    model(x).float().square().sum().backward()
    return [p.grad for p in model.parameters()]


def mean_of_both(model: nn.Module, dtype: torch.dtype) -> list[Tensor]:
    """The gradients of the model without a wrapper, averaged over the batches of all ranks."""
    parts = [[g.clone() for g in gradients(model, batch(r).to(dtype))] for r in range(RANKS)]
    return [a / RANKS + b / RANKS for a, b in zip(*parts, strict=True)]


def far(got: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest gradient."""
    expected = expected.float()
    return float((got.float() - expected).abs().max() / expected.abs().max())


def ddp(rank: int) -> dict[str, object]:
    model = keep_fp32(net().to(LOW), ["1"])
    expected = mean_of_both(copy.deepcopy(model), LOW)
    wrapped = nn.parallel.DistributedDataParallel(model)
    got = gradients(wrapped, batch(rank).to(LOW))
    return {
        "formats": [str(g.dtype) for g in got],
        "far": [far(g, e) for g, e in zip(got, expected, strict=True)],
    }


def fsdp(rank: int) -> dict[str, object]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    alone = keep_fp32(net(), ["1"])
    alone[0].to(LOW), alone[2].to(LOW)
    expected = mean_of_both(alone, LOW)
    model, seen = keep_fp32(net(), ["1"]), []
    for layer in model:
        layer.register_forward_hook(lambda m, args, out: seen.append(str(out.dtype)))
    mesh = init_device_mesh("cpu", (RANKS,))
    fully_shard(model[1], mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=WIDE))
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=LOW))
    got = [g.full_tensor() for g in gradients(model, batch(rank))]
    return {
        "formats": seen,
        "far": [far(g, e) for g, e in zip(got, expected, strict=True)],
    }


if __name__ == "__main__":
    number, path = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", store=dist.FileStore(path, RANKS), rank=number,
                            world_size=RANKS)  # fmt: skip
    try:
        print(json.dumps({"ddp": ddp(number), "fsdp": fsdp(number)}))
    finally:
        dist.destroy_process_group()
