"""``fixup_`` sets the standard deviations of the paper, in any format, and nothing else."""

from __future__ import annotations

import random
from math import prod

import pytest
import torch
from residual_nets import ResNet, images
from torch import nn

import fp16doctor
from fp16doctor.apply.fixup import fixup_


def he(weight: torch.Tensor) -> float:
    """√(2 / (out_channels · k²)): the published code, written out again."""
    return float((2 / (weight.shape[0] * prod(weight.shape[2:]))) ** 0.5)


@pytest.mark.parametrize("blocks", [9, 18])
def test_standard_deviations_of_56_and_110_layers(blocks: int) -> None:
    torch.manual_seed(0)
    model = ResNet(blocks, width=8)
    plan = fixup_(model, images(4, 1))
    assert plan.depth == 3 * blocks
    convolutions = [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d)]
    assert len([n for n in convolutions if not n.endswith("down")]) + 1 == 6 * blocks + 2
    for name in convolutions:
        weight = model.get_submodule(name).weight.detach()
        expected = he(weight) * ((3 * blocks) ** -0.5 if name.endswith("conv1") else 1)
        if name.endswith("conv2"):
            assert not weight.any()
        else:  # the error of a standard deviation of n values is 1/√(2n)
            near = 4 / (2 * weight.numel()) ** 0.5
            assert weight.std().item() == pytest.approx(expected, rel=near), name
            assert abs(weight.mean().item()) < 4 * expected / weight.numel() ** 0.5
        assert not model.get_submodule(name).bias.any()
    assert not model.fc.weight.any()
    assert not model.fc.bias.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_storage_formats_get_the_same_draw_rounded_once(dtype: torch.dtype) -> None:
    narrow, wide = ResNet(2).to(dtype), ResNet(2)
    fixup_(narrow, images().to(dtype), generator=torch.Generator().manual_seed(3))
    fixup_(wide, images(), generator=torch.Generator().manual_seed(3))
    for name, value in wide.named_parameters():
        assert torch.equal(narrow.get_parameter(name), value.to(dtype)), name


def test_the_default_generator_is_torchs_own() -> None:
    models = [ResNet(2) for _ in range(2)]
    for model in models:
        torch.manual_seed(5)
        fixup_(model, images())
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_dry_run_leaves_every_bit() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.drop = ResNet(2), nn.Dropout(0.5)
            self.norm = nn.BatchNorm2d(3)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen = self.seen + random.random()
            return self.net(self.drop(self.norm(x)))

    model = Counting()
    model.norm.eval()
    model.norm.train()
    model.drop.eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    flags = [m.training for m in model.modules()]
    drawn, python = torch.get_rng_state(), random.getstate()
    plan = fixup_(model, images(), dry_run=True, scalars=True)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert random.getstate() == python
    assert [m.training for m in model.modules()] == flags
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[k], before[k]) for k in before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())
    assert not nn.modules.module._global_forward_hooks
    assert not nn.modules.module._global_forward_pre_hooks
    assert "L = 6 residual branches" in str(plan)


def test_inputs_by_keyword_and_alone() -> None:
    by_name = fixup_(ResNet(2), {"x": images()}, dry_run=True)
    assert by_name == fixup_(ResNet(2), (images(),), dry_run=True)


@pytest.mark.parametrize("blocks", [9, 18])
def test_an_overflowing_half_network_trains_after_it(blocks: int) -> None:
    """56 and 110 layers, He's weights in every layer."""

    def run(*, cured: bool) -> list[float]:
        torch.manual_seed(0)
        model = ResNet(blocks, width=8).half()
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
        x, y = 4 * images(4, 8).half(), torch.arange(8)
        if cured:
            fp16doctor.fixup_(model, x)
        optimizer = torch.optim.SGD(fp16doctor.parameter_groups(model, 0.2), momentum=0.9)
        losses = []
        for _ in range(15):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x).float(), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    assert not all(x - x == 0 for x in run(cured=False))
    after = run(cured=True)
    assert all(x - x == 0 for x in after)
    assert after[-1] < 0.8 * after[0]
