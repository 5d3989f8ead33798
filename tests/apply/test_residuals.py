"""Branches are found in whatever form the addition is written, and their layers are counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from residual_nets import (
    Around,
    Block,
    Bottleneck,
    InPlace,
    PreActivation,
    ResNet,
    images,
    rows,
    two,
)
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.apply.fixup import fixup_
from fp16doctor.apply.fixup_plan import FixupPlan


def planned(model: nn.Module, given: Any) -> FixupPlan:
    return fixup_(model, given, dry_run=True)


@pytest.mark.parametrize("block", [Block, PreActivation, InPlace])
def test_every_form_of_the_block_has_two_layers(block: type[Block]) -> None:
    plan = planned(ResNet(2, block=block), images())
    assert plan.depth == 6
    assert [(b.scaled, b.last) for b in plan.branches] == [
        ((f"stages.{s}.{i}.conv1.weight",), (f"stages.{s}.{i}.conv2.weight",))
        for s in range(3)
        for i in range(2)
    ]
    assert plan.classifier == ("fc.weight",)
    assert plan.others == ("conv.weight",)


def test_a_projection_is_no_layer_of_the_branch() -> None:
    plan = planned(ResNet(2), images())
    assert [b.shortcut for b in plan.branches if b.shortcut] == [
        ("stages.1.0.down.weight",),
        ("stages.2.0.down.weight",),
    ]
    assert plan.stds["stages.1.0.down.weight"] == pytest.approx((2 / 8) ** 0.5)


def test_three_layers_and_an_alpha() -> None:
    plan = planned(ResNet(2, block=Bottleneck), images())
    assert {b.m for b in plan.branches} == {3}
    assert {b.factor for b in plan.branches} == {6 ** (-1 / 4)}


def test_layers_of_inner_branches_are_not_those_of_the_outer_one() -> None:
    class Group(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(*[Block(4, 4) for _ in range(3)])
            self.tail = nn.Conv2d(4, 4, 3, 1, 1)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.tail(self.blocks(x))

    model = nn.Sequential(nn.Conv2d(3, 4, 1), Group(), Group(), nn.Conv2d(4, 3, 1))
    plan = planned(model, images())
    assert plan.depth == 8  # 2 × (3 inner + the outer one)
    inner = [b for b in plan.branches if not b.holds]
    outer = [b for b in plan.branches if b.holds]
    assert {b.factor for b in inner} == {8**-0.5}
    assert [(b.last, b.scaled, b.m, b.holds) for b in outer] == [
        (("1.tail.weight",), (), 1, 3),
        (("2.tail.weight",), (), 1, 3),
    ]
    assert "holds 3 inner" in str(plan)


def test_an_outer_addition_without_layers_of_its_own_is_no_branch() -> None:
    class Long(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(*[Block(4, 4) for _ in range(3)])

        def forward(self, x: Tensor) -> Tensor:
            return x + self.blocks(x)

    plan = planned(nn.Sequential(nn.Conv2d(3, 4, 1), Long(), nn.Conv2d(4, 3, 1)), images())
    assert plan.depth == 3
    assert plan.classifier == ("2.weight",)


def test_shortcuts_inside_an_outer_branch_belong_to_the_inner_ones() -> None:
    class Down(nn.Module):
        """A level of a U-Net: what comes back up is added to what went down."""

        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(Block(4, 8, stride=2), Block(8, 8))
            self.up = nn.ConvTranspose2d(8, 4, 2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.up(self.body(x))

    plan = planned(nn.Sequential(nn.Conv2d(3, 4, 1), Down(), nn.Conv2d(4, 3, 1)), images())
    assert plan.depth == 3
    assert plan.branches[0].shortcut == ("1.body.0.down.weight",)
    assert plan.stds["1.body.0.down.weight"] == pytest.approx((2 / 8) ** 0.5)
    outer = plan.branches[-1]
    assert (outer.last, outer.scaled, outer.holds) == (("1.up.weight",), (), 2)


def test_branches_side_by_side_count_once() -> None:
    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = nn.Sequential(Block(4, 4), Block(4, 4))
            self.right = nn.Sequential(Block(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.left(x), self.right(x)], 1)

    plan = planned(nn.Sequential(nn.Conv2d(3, 4, 1), Towers(), nn.Conv2d(8, 3, 1)), images())
    assert (plan.depth, len(plan.branches)) == (2, 3)


def test_a_gate_is_beside_the_branch() -> None:
    class Gated(Around):
        def branch(self, x: Tensor) -> Tensor:
            h = self.b(F.relu(self.a(x)))
            return h * torch.sigmoid(self.gate(h.mean(0, keepdim=True)))

    (branch,) = planned(Gated(**two(), gate=nn.Linear(6, 6)), rows()).branches
    assert (branch.scaled, branch.last, branch.beside, branch.m) == (
        ("a.weight",),
        ("b.weight",),
        ("gate.weight",),
        2,
    )


def test_parallel_ends_are_all_zero() -> None:
    class Sum(Around):
        def branch(self, x: Tensor) -> Tensor:
            h = F.relu(self.a(x))
            return self.b(h) + self.c(h)

    (branch,) = planned(Sum(**two(), c=nn.Linear(6, 6)), rows()).branches
    assert branch.last == ("b.weight", "c.weight")


def test_weights_of_user_modules_have_their_own_fan_out() -> None:
    class Projected(Around):
        def __init__(self) -> None:
            super().__init__()
            self.w1 = nn.Parameter(torch.randn(6, 32))
            self.w2 = nn.Parameter(torch.randn(32, 6))

        def branch(self, x: Tensor) -> Tensor:
            return torch.einsum("ni,io->no", F.relu(x @ self.w1), self.w2)

    plan = planned(Projected(), rows())
    assert plan.branches[0].last == ("w2",)
    assert plan.stds["w1"] == pytest.approx((2 / 32) ** 0.5)


def test_fan_outs_of_groups_and_transposed_convolutions() -> None:
    class Odd(Around):
        def branch(self, x: Tensor) -> Tensor:
            image = self.b(F.relu(self.a(x[:, :, None, None].expand(-1, -1, 4, 4))))
            return self.c(F.relu(image)).mean((2, 3))

    layers: dict[str, nn.Module] = {
        "a": nn.Conv2d(6, 12, 3, 1, 1, groups=6),
        "b": nn.ConvTranspose2d(12, 8, 2, 2),
        "c": nn.Conv2d(8, 6, 1),
    }
    plan = planned(Odd(**layers), rows())
    assert plan.stds["a.weight"] == pytest.approx((2 / (2 * 9)) ** 0.5)
    assert plan.stds["b.weight"] == pytest.approx((2 / (8 * 4)) ** 0.5)
    assert plan.stds["c.weight"] == 0


def test_a_block_used_again_and_again_is_one_branch_and_counts_each_time() -> None:
    class Looped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inp, self.block, self.out = nn.Conv2d(3, 4, 1), Block(4, 4), nn.Conv2d(4, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.inp(x)
            for _ in range(4):
                x = self.block(x)
            return self.out(x)

    plan = planned(Looped(), images())
    assert plan.depth == 4
    assert [b.additions for b in plan.branches] == [4]
    assert "added 4 times" in str(plan)


def test_a_last_layer_that_could_not_learn_from_zero_is_left() -> None:
    model = nn.Sequential(ResNet(2), nn.ReLU())
    plan = planned(model, images())
    assert plan.classifier == ()
    assert dict(plan.skipped)["0.fc.weight"].startswith("as the last layer it would be 0, but")
    normalised = ResNet(2)
    normalised.register_forward_hook(lambda m, a, out: F.normalize(out))
    assert "divided by" in dict(planned(normalised, images()).skipped)["fc.weight"]


def test_a_weight_that_an_embedding_uses_too_is_left() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 6)
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, i: Tensor) -> Tensor:
            x = self.table(i)
            return (x + self.b(F.relu(self.a(x)))) @ self.table.weight.T

    plan = planned(Tied(), torch.arange(5))
    assert dict(plan.skipped) == {"table.weight": "it is used by aten.embedding.default too"}
    assert set(plan.stds) == {"a.weight", "a.bias", "b.weight", "b.bias"}
