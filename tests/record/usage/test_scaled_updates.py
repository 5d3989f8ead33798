"""Divisions by the scale, wherever they stand: right ones give no fact, wrong ones theirs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent))

import loops
from test_usage import facts_of, the_fact

from fp16doctor.schema.usage import BESIDE_SCALED, CLIPPED, UsageKind

Body = Callable[[loops.Bench], None]


def gradients(b: loops.Bench) -> list[Tensor]:
    return [p.grad for p in b.model.parameters() if p.grad is not None]


def unscaled_then(divide: Body) -> Body:
    def body(b: loops.Bench) -> None:
        b.scaler.unscale_(b.opt)
        divide(b)
        b.step()

    return body


def by_number(b: loops.Bench) -> None:
    for g in gradients(b):
        g.mul_(1 / b.scaler.get_scale())


def by_tensor(b: loops.Bench) -> None:
    for g in gradients(b):
        g.div_(b.scaler._get_scale_async())


def all_at_once(b: loops.Bench) -> None:
    torch._foreach_div_(gradients(b), b.scaler.get_scale())


def anew(b: loops.Bench) -> None:
    for p in b.model.parameters():
        assert p.grad is not None
        p.grad = p.grad / b.scaler.get_scale()


@pytest.mark.parametrize("divide", [by_number, by_tensor, all_at_once, anew])
def test_a_division_by_hand_behind_unscale(divide: Body) -> None:
    fact = the_fact(loops.wrong(unscaled_then(divide)), UsageKind.UNSCALED_TWICE)
    assert (fact.loss_scale, fact.steps) == (loops.SCALE, 3)
    assert fact.detail in ("mul", "div")


def test_an_average_behind_unscale_is_none() -> None:
    def average(b: loops.Bench) -> None:
        for g in gradients(b):
            g /= 4

    assert facts_of(loops.wrong(unscaled_then(average))) == ()


def test_a_new_tensor_divided_in_front_of_the_scaler() -> None:
    def body(b: loops.Bench) -> None:
        anew(b)
        b.step()

    the_fact(loops.wrong(body), UsageKind.UNSCALED_TWICE)


def test_a_new_tensor_divided_once() -> None:
    def body(b: loops.Bench) -> None:
        anew(b)
        b.opt.step()

    assert facts_of(loops.wrong(body)) == ()


def test_clipped_and_stepped_without_the_scaler() -> None:
    def body(b: loops.Bench) -> None:
        b.clip()
        b.opt.step()

    fact = the_fact(loops.wrong(body), UsageKind.NEVER_UNSCALED)
    assert (fact.detail, fact.loss_scale) == (CLIPPED, loops.SCALE)


def master(divisor: float) -> Callable[[], None]:
    def loop() -> None:
        b = loops.Bench()
        kept = [p.detach().clone() for p in b.model.parameters()]
        b.model.half()
        opt = torch.optim.SGD(kept, lr=0.01)
        for _ in range(3):
            b.model.zero_grad()
            b.scaler.scale(F.cross_entropy(b.model(b.x.half()).float(), b.y)).backward()
            for p, m in zip(b.model.parameters(), kept, strict=True):
                assert p.grad is not None
                m.grad = p.grad.float().div(divisor)
            opt.step()

    return loop


def test_copies_in_another_format_carry_the_scale() -> None:
    assert facts_of(master(loops.SCALE)) == ()
    the_fact(master(1.0), UsageKind.NEVER_UNSCALED)


def hooked(*, by_scaler: bool) -> Callable[[], None]:
    def loop() -> None:
        b = loops.Bench()
        for p in b.model.parameters():
            p.register_hook(lambda g: g / b.scaler.get_scale())
        for _ in range(3):
            b.opt.zero_grad()
            b.backward()
            if by_scaler:
                b.step()
            else:
                b.opt.step()

    return loop


def test_a_hook_may_divide() -> None:
    assert facts_of(hooked(by_scaler=False)) == ()
    the_fact(hooked(by_scaler=True), UsageKind.UNSCALED_TWICE)


def generator(update: Callable[[torch.amp.GradScaler, torch.optim.Optimizer], object]) -> None:
    """A generator whose forward belongs to the critic's step."""
    torch.manual_seed(0)
    made, critic = nn.Linear(4, 8), nn.Linear(8, 1)
    opts = [torch.optim.SGD(m.parameters(), 0.01) for m in (made, critic)]
    scaler = torch.amp.GradScaler("cpu", init_scale=loops.SCALE)
    for _ in range(3):
        with torch.autocast("cpu", torch.float16):
            fake = made(torch.randn(16, 4))
            both = F.softplus(critic(fake.detach())) + F.softplus(-critic(torch.randn(16, 8)))
        opts[1].zero_grad()
        scaler.scale(both.float().mean()).backward()
        scaler.step(opts[1])
        with torch.autocast("cpu", torch.float16):
            judged = critic(fake)
        opts[0].zero_grad()
        scaler.scale(F.softplus(-judged.float()).mean()).backward()
        update(scaler, opts[0])
        scaler.update()


def test_gradients_of_a_forward_in_an_earlier_step_are_followed() -> None:
    assert facts_of(lambda: generator(lambda scaler, opt: scaler.step(opt))) == ()
    fact = the_fact(lambda: generator(lambda scaler, opt: opt.step()), UsageKind.NEVER_UNSCALED)
    assert fact.site.step == 1


def dropped() -> None:
    b = loops.Bench()
    for _ in range(3):
        b.opt.zero_grad()
        loss = b.loss()
        b.scaler.scale(loss)
        loss.backward()
        b.step()


def test_a_product_that_is_dropped() -> None:
    facts = facts_of(dropped)
    assert {f.kind for f in facts} == {UsageKind.NEVER_SCALED}
    assert (facts[0].optimizer, facts[0].loss_scale, facts[0].detail) == ("SGD", loops.SCALE, "")
    assert facts[0].site.source is not None
    assert (facts[0].site.source.text or "") == "loss.backward()"


def test_one_of_two_losses_without_the_scale() -> None:
    def body(b: loops.Bench) -> None:
        sum(p.square().sum() for p in b.model.parameters()).backward()  # type: ignore[union-attr]
        b.step()

    fact = the_fact(loops.wrong(body), UsageKind.NEVER_SCALED)
    assert fact.detail == BESIDE_SCALED


def test_a_loss_without_the_scale_behind_a_division_by_hand() -> None:
    def body(b: loops.Bench) -> None:
        by_number(b)
        sum(p.square().sum() for p in b.model.parameters()).backward()  # type: ignore[union-attr]
        b.opt.step()

    assert facts_of(loops.wrong(body)) == ()


def penalised(free: Callable[[Tensor, loops.Bench], Tensor]) -> Callable[[], None]:
    def loop() -> None:
        b = loops.Bench()
        b.x.requires_grad_(True)
        for _ in range(3):
            b.opt.zero_grad()
            loss = b.loss()
            (grad,) = torch.autograd.grad(b.scaler.scale(loss), b.x, create_graph=True)
            penalty = (free(grad, b).norm(2, dim=1) - 1).square().mean()
            b.scaler.scale(loss + 1e-6 * penalty).backward()
            b.step()

    return loop


def inverse(grad: Tensor, b: loops.Bench) -> Tensor:
    return grad * b.scaler._get_scale_async().reciprocal()  # type: ignore[union-attr]


def test_a_penalty_on_scaled_gradients() -> None:
    fact = the_fact(penalised(lambda grad, b: grad), UsageKind.SCALED_PENALTY)
    assert fact.loss_scale == loops.SCALE
    assert fact.site.source is not None
    assert (fact.site.source.text or "").startswith("penalty =")


@pytest.mark.parametrize(
    "free",
    [
        lambda grad, b: grad / b.scaler.get_scale(),
        inverse,
        lambda grad, b: grad / grad.norm(),
        lambda grad, b: F.normalize(grad, dim=1),
    ],
)
def test_a_penalty_that_carries_no_scale(free: Callable[[Tensor, loops.Bench], Tensor]) -> None:
    assert facts_of(penalised(free)) == ()


def test_a_direct_step_behind_unscale() -> None:
    def body(b: loops.Bench) -> None:
        b.scaler.unscale_(b.opt)
        b.clip()
        b.opt.step()
        b.scaler.update()

    fact = the_fact(loops.wrong(body), UsageKind.UNCHECKED_STEP)
    assert (fact.optimizer, fact.steps) == ("SGD", 3)
