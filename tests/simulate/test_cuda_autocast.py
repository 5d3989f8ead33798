"""CUDA's autocast lists on the CPU: what runs in which format, and that nothing stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fp16doctor.simulate.cuda_autocast import CudaAutocast

Op = Callable[[Tensor], Tensor]
FP32: dict[str, Op] = {
    "softmax": lambda h: h.softmax(-1),
    "log_softmax": lambda h: F.log_softmax(h, -1),
    "layer_norm": lambda h: F.layer_norm(h, (8,)),
    "rms_norm": lambda h: F.rms_norm(h, (8,)),
    "group_norm": lambda h: F.group_norm(h, 2),
    "exp": torch.exp,
    "log": lambda h: h.abs().log(),
    "pow": lambda h: h**2,
    "rsqrt": lambda h: h.abs().rsqrt(),
    "sum": lambda h: h.sum(),
    "sum of a dimension": lambda h: h.sum(-1),
    "prod": lambda h: h.prod(),
    "cumsum": lambda h: h.cumsum(0),
    "norm": lambda h: h.norm(),
    "norm of a dimension": lambda h: h.norm(dim=-1),
    "vector_norm": torch.linalg.vector_norm,
    "logsumexp": lambda h: h.logsumexp(-1),
    "mse_loss": lambda h: F.mse_loss(h, torch.zeros_like(h)),
    "cosine_similarity": lambda h: F.cosine_similarity(h, torch.ones(4, 8)),
}
FP16: dict[str, Op] = {
    "add": lambda h: h + h,
    "mul": lambda h: h * h,
    "mean": lambda h: h.mean(),
    "gelu": F.gelu,
    "mm": lambda h: h.float() @ h.float().T,
    "mv": lambda h: h.float() @ h[0].float(),
    "einsum": lambda h: torch.einsum("ij,kj->ik", h.float(), h.float()),
    "prelu": lambda h: F.prelu(h.float(), torch.ones(1)),
    "sum with a dtype": lambda h: h.sum(dtype=torch.float16),
}


@pytest.fixture
def half() -> Tensor:
    return torch.randn(4, 8).half().requires_grad_()


@pytest.fixture
def lists() -> Iterator[list[bool]]:
    """CUDA's lists are on; ``lists[0]`` says for which device the region was made."""
    made_for_cuda = [True]
    kernels = CudaAutocast(lambda: made_for_cuda[0])
    kernels.put()
    yield made_for_cuda
    kernels.take_off()


def outputs(ops: dict[str, Op], half: Tensor) -> dict[str, torch.dtype]:
    with torch.autocast("cpu", torch.float16):
        return {name: op(half).dtype for name, op in ops.items()}


def test_listed_ops_run_in_fp32_and_the_others_do_not(lists: list[bool], half: Tensor) -> None:
    assert {k for k, v in outputs(FP32, half).items() if v is not torch.float32} == set()
    assert {k for k, v in outputs(FP16, half).items() if v is not torch.float16} == set()


@pytest.mark.parametrize("name", FP32)
def test_backward_runs_in_fp32_as_well(name: str, lists: list[bool], half: Tensor) -> None:
    """The gradient is the fp32 one, rounded once where it reaches the fp16 input."""
    with torch.autocast("cpu", torch.float16):
        FP32[name](half).sum().backward()
    wide = half.detach().float().requires_grad_()
    FP32[name](wide).sum().backward()
    assert half.grad is not None
    assert wide.grad is not None
    assert torch.equal(half.grad, wide.grad.half())


def test_mixed_inputs_are_promoted(lists: list[bool], half: Tensor) -> None:
    row, wide = half[0], torch.randn(8)
    with torch.autocast("cpu", torch.float16):
        assert torch.dot(row, wide).dtype is torch.float32
        assert torch.dot(row, row).dtype is torch.float16
        assert torch.addcmul(row, row, wide).dtype is torch.float32


def test_what_cuda_refuses_is_refused(lists: list[bool]) -> None:
    p = torch.rand(3)
    with torch.autocast("cpu", torch.float16), pytest.raises(RuntimeError, match="logits"):
        F.binary_cross_entropy(p, p)
    assert F.binary_cross_entropy(p, p).isfinite()


def test_regions_made_for_the_cpu_keep_its_lists(half: Tensor) -> None:
    ops = {**FP32, **FP16}
    plain = outputs(ops, half)
    kernels = CudaAutocast(lambda: False)
    kernels.put()
    try:
        assert outputs(ops, half) == plain
    finally:
        kernels.take_off()


def test_nothing_stays(half: Tensor) -> None:
    ops = {**FP32, **FP16}
    plain = outputs(ops, half)
    kernels = CudaAutocast(lambda: True)
    kernels.put()
    kernels.take_off()
    assert outputs(ops, half) == plain
    assert plain["softmax"] is torch.float16
