"""Models of one script that have the same paths are told apart by the variables that hold them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from watched import Record, Watched, short
from watched import one_backward as sites_of

from fp16doctor.record.root_name import heads_of


def stack(width: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 3))


def paths(seen: Watched) -> list[str | None]:
    return [op.site.module_path for op in seen.ops if short(op.op) == "addmm"]


def test_two_models_that_train(record: Record) -> None:
    def loss() -> Tensor:
        first, second = stack(), stack(5)
        out: Tensor = second(first(torch.randn(2, 3)))
        return out.sum()

    assert paths(sites_of(record, loss)) == ["first.0", "first.2", "second.0", "second.2"]


def test_a_model_without_children_is_named_too(record: Record) -> None:
    def loss() -> Tensor:
        up, down = nn.Linear(3, 4), nn.Linear(4, 3)
        out: Tensor = down(up(torch.randn(2, 3)))
        return out.sum()

    assert paths(sites_of(record, loss)) == ["up", "down"]


@pytest.mark.parametrize("teacher_first", [False, True])
def test_a_model_that_trains_alone_keeps_its_names(record: Record, teacher_first: bool) -> None:
    def loss() -> Tensor:
        student = stack()
        teacher = copy.deepcopy(student).requires_grad_(False)
        x = torch.randn(2, 3)
        if teacher_first:
            goal = teacher(x)
            return (student(x) - goal).square().sum()
        return (student(x) - teacher(x)).square().sum()

    found = paths(sites_of(record, loss))
    plain, named = ["0", "2"], ["teacher.0", "teacher.2"]
    assert found == (named + plain if teacher_first else plain + named)


def test_one_that_is_made_later_is_named(record: Record) -> None:
    def loss() -> Tensor:
        first = stack()
        out = first(torch.randn(2, 3))
        second = stack()
        return second(out).sum()  # type: ignore[no-any-return]

    assert paths(sites_of(record, loss)) == ["0", "2", "second.0", "second.2"]


def test_plain_where_nothing_is_shared_and_where_one_is_a_part(record: Record) -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.left(x) + self.right(x)  # type: ignore[no-any-return]

    def apart() -> Tensor:
        body, head = Pair(), stack()
        out: Tensor = head(body(torch.randn(2, 3)))
        return out.sum()

    def part() -> Tensor:
        whole = nn.Sequential(stack(), stack())
        half = whole[0]
        out: Tensor = whole(torch.randn(2, 3)) + half(torch.randn(2, 3))
        return out.sum()

    assert paths(sites_of(record, apart)) == ["left", "right", "0", "2"]
    assert paths(sites_of(record, part)) == ["0.0", "0.2", "1.0", "1.2", "0.0", "0.2"]


def test_heads() -> None:
    assert heads_of(stack()) == {"0", "1", "2"}
    assert heads_of(nn.Linear(2, 2)) == {"weight", "bias"}
