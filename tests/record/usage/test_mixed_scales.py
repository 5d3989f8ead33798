"""Gradients of two scales added up: a fault only where the sum is used before it is dropped."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

import loops
from test_usage import facts_of

from fp16doctor.schema.usage import UsageKind


def zeroed(zero: Callable[[Tensor], object], *, late: bool) -> Callable[[], None]:
    """A sound loop with a way of zeroing, before forward or between forward and backward."""

    def loop() -> None:
        b = loops.Bench()
        for _ in range(4):
            loss = b.loss() if late else None
            for p in b.model.parameters():
                if p.grad is not None:
                    zero(p.grad)
            b.scaler.scale(b.loss() if loss is None else loss).backward()
            b.step()

    return loop


def by_numpy(grad: Tensor) -> None:
    grad.numpy()[...] = 0


ZEROING: dict[str, Callable[[Tensor], object]] = {
    "zero_": lambda g: g.zero_(),
    "fill_": lambda g: g.fill_(0.0),
    "times 0": lambda g: g.mul_(0.0),
    "minus itself": lambda g: g.sub_(g),
    "minus its copy": lambda g: g.sub_(g.clone()),
}
NOT_ZEROING: dict[str, Callable[[Tensor], object]] = {
    "halved": lambda g: g.mul_(0.5),
    "minus half of itself": lambda g: g.sub_(g, alpha=0.5),
    "minus an old copy": lambda g: g.add_(g.clone()).sub_(torch.ones_like(g)),
    "left alone": lambda g: None,
}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", ZEROING)
def test_every_way_of_zeroing_starts_afresh(name: str, late: bool) -> None:
    assert facts_of(zeroed(ZEROING[name], late=late)) == ()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", NOT_ZEROING)
def test_anything_else_does_not(name: str, late: bool) -> None:
    kinds = {f.kind for f in facts_of(zeroed(NOT_ZEROING[name], late=late))}
    assert UsageKind.MIXED_SCALES in kinds


@pytest.mark.parametrize("late", [False, True])
def test_zeroing_without_an_op_is_seen_in_front_of_backward(late: bool) -> None:
    assert facts_of(zeroed(by_numpy, late=late)) == ()


def test_zeroing_a_large_gradient_without_an_op_is_seen_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fp16doctor.record.roll.EARLY_COPY", 0)
    assert facts_of(zeroed(by_numpy, late=True)) == ()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", ["zero_", "times 0", "minus itself"])
def test_zeroing_one_row_leaves_the_rest_as_it_is(name: str, late: bool) -> None:
    def padding(grad: Tensor) -> None:
        ZEROING[name](grad[:1])

    assert UsageKind.MIXED_SCALES in {f.kind for f in facts_of(zeroed(padding, late=late))}


def test_zeroing_every_gradient_of_one_buffer_starts_afresh() -> None:
    def loop() -> None:
        b = loops.Bench()
        parameters = list(b.model.parameters())
        flat = torch.zeros(sum(p.numel() for p in parameters))
        at = 0
        for p in parameters:
            p.grad = flat[at : at + p.numel()].view_as(p)
            at += p.numel()
        for _ in range(3):
            for p in parameters:
                assert p.grad is not None
                p.grad.zero_()
            b.scaler.scale(b.loss()).backward()
            b.step()

    assert facts_of(loop) == ()


def gan(*, clears: bool) -> Callable[[], None]:
    """The usual recipe: the generator's loss goes through the critic, whose gradients pile up."""

    def loop() -> None:
        torch.manual_seed(0)
        made, critic = nn.Linear(4, 8), nn.Linear(8, 1)
        opts = [torch.optim.SGD(m.parameters(), 0.01) for m in (made, critic)]
        scaler = torch.amp.GradScaler("cpu", init_scale=loops.SCALE)
        for number in range(4):
            fake = made(torch.randn(16, 4))
            if clears or number == 0:
                opts[1].zero_grad()
            both = F.softplus(critic(fake.detach())) + F.softplus(-critic(torch.randn(16, 8)))
            scaler.scale(both.mean()).backward()
            scaler.step(opts[1])
            opts[0].zero_grad()
            scaler.scale(F.softplus(-critic(fake)).mean()).backward()
            scaler.step(opts[0])
            scaler.update()

    return loop


def test_sums_cleared_before_their_use_are_none() -> None:
    assert facts_of(gan(clears=True)) == ()


def test_sums_used_in_the_next_step_are_told_with_their_own_step() -> None:
    mixed = next(f for f in facts_of(gan(clears=False)) if f.kind is UsageKind.MIXED_SCALES)
    assert mixed.site.source is not None
    assert "critic(fake)" in (mixed.site.source.text or "")


def test_an_update_by_hand_uses_them_too() -> None:
    def loop() -> None:
        b = loops.Bench()
        for _ in range(3):
            b.backward()
            b.scaler.unscale_(b.opt)
            b.backward()
            with torch.no_grad():
                for p in b.model.parameters():
                    assert p.grad is not None
                    p.sub_(p.grad, alpha=1e-3)
            b.scaler.update()
            b.opt.zero_grad()

    assert UsageKind.MIXED_SCALES in {f.kind for f in facts_of(loop)}
