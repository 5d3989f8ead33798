"""Scripts that say "cuda" on the CPU: what is answered when, and that nothing stays."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import _device
from torch.utils.checkpoint import DefaultDeviceType, checkpoint
from torch.utils.data import DataLoader, TensorDataset

from fp16doctor.simulate.cuda_autocast import CudaAutocast
from fp16doctor.simulate.cuda_device import CudaDevice

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*not available")
OWNERS: tuple[Any, ...] = (
    *(torch, torch.cuda, torch.cuda.nvtx, torch.accelerator, torch.cuda.amp.common),
    *(
        torch.amp.autocast_mode.autocast,
        torch.amp.GradScaler,
        torch.Tensor,
        DataLoader,
        _device.DeviceContext,
    ),
)


def held() -> list[dict[str, Any]]:
    return [dict(vars(owner)) for owner in OWNERS]


def changed(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> set[tuple[int, str]]:
    pairs = enumerate(zip(before, after, strict=True))
    return {(n, k) for n, (a, b) in pairs for k in a.keys() | b.keys() if a.get(k) is not b.get(k)}


@pytest.fixture
def cuda() -> Iterator[CudaDevice]:
    """A device that is started; what it replaces is back at the end.

    torch itself gets other names where it imports a part of itself late.
    """
    before, modes = held(), _get_current_function_mode_stack()
    device = CudaDevice(lambda: None)
    device.start()
    replaced = changed(before, held())
    assert len(replaced) > 40
    yield device
    device.stop()
    assert not replaced & changed(before, held())
    assert _get_current_function_mode_stack() == modes


REQUESTS: dict[str, Callable[[], Any]] = {
    "to": lambda: torch.zeros(2).to("cuda"),
    "to a device": lambda: torch.zeros(2).to(torch.device("cuda:0"), torch.float16, True, False),
    "to a number": lambda: torch.zeros(2).to(0),
    "to by name": lambda: torch.zeros(2).to(device="cuda", non_blocking=True),
    "cuda": lambda: torch.zeros(2).cuda(0, non_blocking=True),
    "type": lambda: torch.zeros(2).type("torch.cuda.HalfTensor"),
    "module": lambda: nn.Linear(2, 2).cuda().weight,
    "module to": lambda: nn.Linear(2, 2).to("cuda", torch.float16).weight,
    "module made there": lambda: nn.Linear(2, 2, device="cuda").weight,
    "factory": lambda: torch.randn(2, device="cuda:0"),
    "tensor": lambda: torch.tensor([1.0, 2.0], device="cuda"),
    "new": lambda: torch.zeros(2).new_ones(2, device="cuda"),
    "generator": lambda: torch.randn(2, generator=torch.Generator(device="cuda")),
    "default device": lambda: _with_default_device(),
    "synchronize": lambda: torch.cuda.synchronize(),
    "current_device": lambda: torch.cuda.current_device(),
    "set_device": lambda: torch.cuda.set_device(0),
    "stream": lambda: torch.cuda.Stream(),
    "event": lambda: torch.cuda.Event(enable_timing=True),
    "device": lambda: torch.cuda.device(0).__enter__(),
}


def _with_default_device() -> torch.Tensor:
    with torch.device("cuda"):
        return torch.zeros(2)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_answered_by_the_cpu(name: str, cuda: CudaDevice) -> None:
    assert not torch.cuda.is_available()
    assert not cuda.live
    result = REQUESTS[name]()
    assert cuda.live
    assert torch.cuda.is_available()
    if isinstance(result, torch.Tensor):
        assert result.device.type == "cpu"
        assert not result.is_cuda


def test_what_asks_for_no_device_is_as_it_was(cuda: CudaDevice) -> None:
    """A script that chooses the CPU keeps its choice."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.cuda.manual_seed_all(0)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == torch.cuda.device_count() == 0
    model = nn.Linear(2, 2).to(device)
    model(torch.zeros(1, 2, device=torch.device(device))).sum().backward()
    with torch.autocast("cpu", torch.bfloat16):
        assert model(torch.zeros(1, 2)).dtype is torch.bfloat16
    assert not cuda.live


def test_the_request_is_told_once() -> None:
    told: list[int] = []
    device = CudaDevice(lambda: told.append(1))
    device.start()
    try:
        torch.zeros(1).cuda()
        torch.zeros(1).cuda()
    finally:
        device.stop()
    assert told == [1]


def test_a_tensor_moved_there_is_another_one(cuda: CudaDevice) -> None:
    x = torch.zeros(2)
    x.cuda().add_(1)
    x.to("cuda").add_(1)
    assert x.tolist() == [0, 0]
    weight = nn.Parameter(torch.zeros(2))
    assert not weight.cuda().is_leaf  # as on a GPU
    model = nn.Linear(2, 2)
    model.extra = model.weight
    parameter = model.weight
    assert model.cuda().weight is parameter is model.extra


def test_calls_of_torch_cuda(cuda: CudaDevice) -> None:
    torch.cuda.synchronize()
    assert (torch.cuda.device_count(), torch.cuda.current_device()) == (1, 0)
    assert torch.cuda.get_device_capability() == (8, 0)
    assert torch.cuda.get_device_properties(0).total_memory > 0
    assert "simulated" in torch.cuda.get_device_name()
    assert torch.cuda.max_memory_allocated() == 0
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.nvtx.range_push("x")
    torch.cuda.nvtx.range_pop()
    stream, start = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        start.record()
    stream.wait_stream(torch.cuda.current_stream())
    torch.zeros(1).record_stream(stream)
    assert isinstance(stream, torch.cuda.Stream)
    assert start.elapsed_time(start) == 0
    assert isinstance(torch.default_generator, torch.Generator)
    torch.cuda.set_rng_state(torch.cuda.get_rng_state())


def test_loading_what_is_mapped_there(cuda: CudaDevice, tmp_path: Path) -> None:
    file = io.BytesIO()
    torch.save({"w": torch.ones(2)}, file)
    for there in ("cuda:0", torch.device("cuda"), {"cpu": "cuda:0"}, None):
        file.seek(0)
        assert torch.load(file, map_location=there)["w"].tolist() == [1, 1]


def test_a_loader_with_pinned_memory_is_quiet(cuda: CudaDevice) -> None:
    torch.cuda.synchronize()
    loader = DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2, pin_memory=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches = [batch.pin_memory().cuda(non_blocking=True).tolist() for (batch,) in loader]
    assert batches == [[0, 1], [2, 3]]
    assert loader.pin_memory


def test_data_parallel_on_one_device_is_the_module(cuda: CudaDevice) -> None:
    model = nn.DataParallel(nn.Linear(2, 1).cuda())
    assert model(torch.ones(3, 2).cuda()).shape == (3, 1)


@pytest.mark.parametrize("early", [True, False], ids=["before the request", "after it"])
def test_autocast_and_scaler_for_cuda(early: bool, cuda: CudaDevice) -> None:
    """Those made before the first request, which torch switches off, come on at it."""
    if not early:
        torch.cuda.synchronize()
    scaler = torch.cuda.amp.GradScaler(init_scale=8.0)
    other = torch.amp.GradScaler("cuda", init_scale=4.0)
    off = torch.amp.GradScaler("cuda", enabled=False)
    regions = [torch.autocast("cuda"), torch.cuda.amp.autocast(dtype=torch.bfloat16)]
    idle = torch.autocast("cuda", enabled=False)
    model = nn.Linear(2, 2).cuda()
    x = torch.ones(1, 2, device="cuda")
    for region, dtype in zip((*regions, idle), ("float16", "bfloat16", "float32"), strict=True):
        with region:
            assert model(x).dtype is getattr(torch, dtype)
            assert torch.is_autocast_enabled() == (region is not idle)
    assert (scaler.is_enabled(), off.is_enabled()) == (True, False)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler.scale(model(x).sum()).backward()
    scaler.step(optimizer)
    scaler.update(torch.tensor(2.0))
    other.scale(model(x).sum())
    assert (scaler.get_scale(), other.get_scale()) == (2.0, 4.0)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_cudas_lists_hold_in_regions_made_for_it_and_in_recomputation(
    kind: str, cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever kind of device checkpointing takes tensors for that are on the CPU."""
    monkeypatch.setattr(DefaultDeviceType, "_default_device_type", kind)
    lists = CudaAutocast(cuda.amp.for_cuda)
    lists.put()
    seen: list[torch.dtype] = []

    def block(h: torch.Tensor) -> torch.Tensor:
        seen.append(h.exp().dtype)
        return h.exp().float()

    try:
        h = torch.zeros(2, device="cuda").half().requires_grad_()
        with torch.autocast("cuda"):
            out = checkpoint(block, h, use_reentrant=False)
        out.sum().backward()
        assert seen == [torch.float32, torch.float32]
        with torch.autocast("cuda"), torch.autocast("cpu", torch.float16):
            assert h.exp().dtype is torch.float16
    finally:
        lists.take_off()


def test_modes_that_the_script_leaves_open_stay(cuda: CudaDevice) -> None:
    class Mine(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    device = CudaDevice(lambda: None)
    device.start()
    mine = Mine()
    mine.__enter__()
    device.stop()
    assert _get_current_function_mode_stack()[-1] is mine
    mine.__exit__(None, None, None)


def test_what_the_compiler_asks_for_itself_is_no_request_of_the_script() -> None:
    """Inductor asks for the device's properties in every script, and catches the refusal."""
    asked: list[bool] = []
    device = CudaDevice(lambda: asked.append(True))
    device.start()
    try:
        inside = {"__name__": "torch._inductor.codecache", "torch": torch}
        with pytest.raises((AssertionError, RuntimeError)):
            exec("torch.cuda.get_device_properties(torch.cuda.current_device())", inside)
        assert not device.live
        assert asked == []
        exec("torch.cuda.current_device()", {"__name__": "script", "torch": torch})
        assert asked == [True]
    finally:
        device.stop()
