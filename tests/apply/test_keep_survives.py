"""What may happen to a model with kept modules: saved, loaded, copied, wrapped, compiled, cast."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from fp16doctor.apply.keep_fp32 import keep_fp32
from fp16doctor.errors import ApplyError


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))


def kept(model: nn.Module | None = None) -> nn.Module:
    return keep_fp32(net().half() if model is None else model, ["1"])


def batch() -> Tensor:
    return torch.linspace(-1, 1, 8).reshape(2, 4).half()


def formats(model: nn.Module) -> list[torch.dtype]:
    return [p.dtype for p in model.parameters()]


def trained(model: nn.Module) -> list[Tensor]:
    """The output, and every gradient."""
    model.zero_grad()
    out = model(batch())
    out.float().sum().backward()
    return [out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(
        x.dtype is y.dtype and torch.equal(x, y) for x, y in zip(a, b, strict=True)
    )


HALF, WIDE = torch.float16, torch.float32
MIXED = [HALF, HALF, WIDE, WIDE, HALF, HALF]


def test_the_state_goes_into_a_model_without_it_and_back() -> None:
    model, plain = kept(), net().half()
    assert list(model.state_dict()) == list(plain.state_dict())
    plain[0].weight.data.add_(1)
    model.load_state_dict(plain.state_dict())
    assert formats(model) == MIXED
    assert torch.equal(model[0].weight, plain[0].weight)
    plain.load_state_dict(model.state_dict())
    assert set(formats(plain)) == {HALF}


def test_a_pickle_and_a_copy_are_kept() -> None:
    model = kept()
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert equal(trained(other), trained(model))
        assert other[1].__dict__["forward"].module is other[1]
        assert formats(other.half()) == MIXED


def test_another_process_loads_the_whole_model(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    model = kept()
    torch.save(model, path)
    code = f"""
import torch
model = torch.load({str(path)!r}, weights_only=False)
out = model(torch.linspace(-1, 1, 8).reshape(2, 4).half())
print(model[1](torch.ones(1, 4).half()).dtype, out.flatten().tolist())
"""
    package = Path(sys.modules["fp16doctor"].__file__ or "").parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(package)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"torch.float32 {model(batch()).flatten().tolist()}"


def test_parameters_stay_the_same_objects() -> None:
    model = net().half()
    before = list(model.parameters())
    optimizer = torch.optim.Adam(before, lr=0.1)
    kept(model)
    assert all(p is q for p, q in zip(before, model.parameters(), strict=True))
    old = model[1].weight.detach().clone()
    trained(model)
    optimizer.step()
    assert not torch.equal(model[1].weight, old)
    assert optimizer.state[model[1].weight]["exp_avg"].dtype is WIDE


def test_it_goes_on_in_eval_and_in_train() -> None:
    model = kept()
    expected = trained(model)
    model.eval()
    assert torch.equal(model(batch()), expected[0])
    assert equal(trained(model.train()), expected)


@pytest.mark.parametrize("cast", ["half", "bfloat16", "to", "of the module"])
def test_a_later_cast_leaves_it_in_fp32_bit_by_bit(cast: str) -> None:
    model = kept(net())
    with torch.no_grad():
        model[1].weight[0, 0] = 1e5  # no fp16 number
    bits = model[1].weight.detach().clone()
    if cast == "to":
        model.to(torch.float16)
    elif cast == "of the module":
        model[1].half()
    else:
        getattr(model, cast)()
    assert torch.equal(model[1].weight, bits)
    if cast != "of the module":
        assert formats(model)[0] is not WIDE
        assert model(batch()).dtype is formats(model)[0]
    assert formats(model.double()) == [torch.float64] * 6


def test_what_brings_16_bits_in_all_the_same_is_told() -> None:
    model = kept()
    model.load_state_dict(net().half().state_dict(), assign=True)
    with pytest.raises(ApplyError, match=r"'weight' is in float16.*kept-in-16-bits"):
        model(batch())
    assert torch.isfinite(kept(model)(batch())).all()


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_list_of_modules_is_never_called_and_its_modules_are_kept() -> None:
    model = keep_fp32(Listed().half(), "layers")
    assert model(batch()).dtype is WIDE
    assert model.layers[0](batch()).dtype is WIDE


def test_a_projection_that_attention_reads_itself_is_refused() -> None:
    model = nn.Sequential(nn.MultiheadAttention(4, 2)).half()
    with pytest.raises(ApplyError, match=r"keep '0'.*never-called"):
        keep_fp32(model, ["0.out_proj"])
    assert set(formats(model)) == {HALF}
    x = torch.ones(2, 1, 4).half()
    assert keep_fp32(model, ["0"])[0](x, x, x)[0].dtype is WIDE


def test_a_parameter_shared_with_a_module_that_has_others_is_refused() -> None:
    model = net().half()
    model.register_parameter("shared", model[1].weight)
    with pytest.raises(ApplyError, match=r"computes on it as 'shared'.*shared-parameter"):
        kept(model)
    assert set(formats(model)) == {HALF}


@pytest.mark.parametrize("patterns", [None, [], ()])
def test_no_pattern_is_no_keep_list(patterns: list[str] | None) -> None:
    with pytest.raises(ApplyError, match=r"no-such-module"):
        keep_fp32(net(), patterns)  # type: ignore[type-var]


# -- wrapped and compiled ------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [True, False])
def test_compiled_it_gives_the_same_without_a_break(stored: bool) -> None:
    model = kept(net().half() if stored else net())
    torch._dynamo.reset()
    try:
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        with torch.autocast("cpu", torch.float16, enabled=not stored):
            assert equal(trained(compiled), trained(model))
    finally:
        torch._dynamo.reset()


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_under_ddp_it_trains_as_without() -> None:
    model = kept()
    expected = trained(model)
    wrapped = nn.parallel.DistributedDataParallel(copy.deepcopy(model))
    assert equal(trained(wrapped), expected)
    for name in ("module.1", "1"):
        late = keep_fp32(nn.parallel.DistributedDataParallel(net().half()), [name])
        assert late.module[1](batch()).dtype is WIDE


@pytest.mark.usefixtures("group")
class TestFsdp:
    """``fully_shard`` wants one dtype a group; a kept module has a group of its own."""

    def sharded(self, model: nn.Module, *own: nn.Module) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = init_device_mesh("cpu", (1,))
        for module in own:
            fully_shard(module, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=WIDE))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        return fully_shard(model, mesh=mesh, mp_policy=policy)

    def test_its_own_group_computes_in_fp32(self) -> None:
        model = kept(net())
        seen: list[tuple[torch.dtype, ...]] = []
        for layer in model.children():
            layer.register_forward_hook(
                lambda m, args, out: seen.append((args[0].dtype, m.weight.dtype, out.dtype))
            )
        self.sharded(model, model[1])
        model(batch().float()).float().sum().backward()
        low = torch.bfloat16
        assert seen == [(low, low, low), (WIDE, WIDE, WIDE), (low, low, low)]
        assert all(p.grad is not None for p in model.parameters())

    def test_without_a_group_of_its_own_it_is_told(self) -> None:
        model = self.sharded(kept(net()))
        with pytest.raises(ApplyError, match=r"in bfloat16; .*own: fully_shard.*kept-in-16-bits"):
            model(batch().float())

    def test_after_sharding_it_is_refused(self) -> None:
        model = net()
        self.sharded(model, model[1])
        with pytest.raises(ApplyError, match=r"call keep_fp32 first.*already-sharded"):
            kept(model)


def test_the_older_wrapper_is_refused_as_well() -> None:
    """It needs an accelerator to be made; its class is known by its name."""
    names = {"__module__": "torch.distributed.fsdp.fully_sharded_data_parallel"}
    wrapper = type("FullyShardedDataParallel", (nn.Sequential,), names)
    with pytest.raises(ApplyError, match="already-sharded"):
        keep_fp32(nn.Sequential(nn.Linear(4, 4), wrapper(nn.Linear(4, 4))), ["1.0"])
    with pytest.raises(ApplyError, match="already-sharded"):
        keep_fp32(nn.Sequential(nn.Linear(4, 4), wrapper(nn.Linear(4, 4))), ["1"])
