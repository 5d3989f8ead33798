"""Small training loops, right and wrong, as they are written; each runs three or more steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SCALE = 1024.0


class Bench:
    """Model, data, optimizer and scaler of one loop."""

    def __init__(self, optimizer: Any = torch.optim.SGD, **kwargs: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.opt = optimizer(self.model.parameters(), **({"lr": 0.01} | kwargs))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
        self.x, self.y = torch.randn(16, 8), torch.randint(0, 4, (16,))

    def loss(self, dtype: torch.dtype = torch.float16) -> Tensor:
        with torch.autocast("cpu", dtype=dtype):
            logits = self.model(self.x)
        return F.cross_entropy(logits.float(), self.y)

    def backward(self) -> None:
        self.scaler.scale(self.loss()).backward()

    def clip(self, most: float = 0.1) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), most)

    def step(self) -> None:
        self.scaler.step(self.opt)
        self.scaler.update()


# -- right ---------------------------------------------------------------------------------------


def accumulate_unscale_clip() -> None:
    b = Bench()
    for _ in range(3):
        b.opt.zero_grad()
        for _ in range(4):
            b.scaler.scale(b.loss() / 4).backward()
        b.scaler.unscale_(b.opt)
        b.clip()
        b.step()


def gradients_zeroed_in_place_and_averaged() -> None:
    b = Bench()
    for _ in range(4):
        for _ in range(3):
            b.backward()
        for p in b.model.parameters():
            assert p.grad is not None
            p.grad /= 3
        b.scaler.unscale_(b.opt)
        b.clip()
        b.step()
        b.opt.zero_grad(set_to_none=False)


def two_optimizers_one_scaler() -> None:
    b = Bench()
    halves = [torch.optim.SGD(b.model[i].parameters(), lr=0.01) for i in (0, 2)]
    for _ in range(3):
        for opt in halves:
            opt.zero_grad()
        b.backward()
        for opt in halves:
            b.scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(opt.param_groups[0]["params"], 0.1)
            b.scaler.step(opt)
        b.scaler.update()


def static_scale_divided_by_hand() -> None:
    b = Bench()
    for _ in range(3):
        b.opt.zero_grad()
        (b.loss() * SCALE).backward()
        for p in b.model.parameters():
            assert p.grad is not None
            p.grad.div_(SCALE)
        b.clip()
        b.opt.step()


def master_weights() -> None:
    b = Bench()
    master = [p.detach().clone() for p in b.model.parameters()]
    b.model.half()
    opt = torch.optim.SGD(master, lr=0.01)
    for _ in range(3):
        b.model.zero_grad()
        (F.cross_entropy(b.model(b.x.half()).float(), b.y) * SCALE).backward()
        for p, m in zip(b.model.parameters(), master, strict=True):
            assert p.grad is not None
            m.grad = p.grad.float() / SCALE
        opt.step()
        with torch.no_grad():
            for p, m in zip(b.model.parameters(), master, strict=True):
                p.copy_(m)


def bf16_without_scaler() -> None:
    b = Bench()
    for _ in range(3):
        b.opt.zero_grad()
        b.loss(torch.bfloat16).backward()
        b.clip()
        b.opt.step()


def fused_optimizer() -> None:
    b = Bench(torch.optim.Adam, fused=True)
    for clip in (True, False, True):
        b.opt.zero_grad()
        b.backward()
        if clip:
            b.scaler.unscale_(b.opt)
            b.clip()
        b.step()


def unscaled_by_hand() -> None:
    b = Bench()
    for _ in range(3):
        b.opt.zero_grad()
        b.backward()
        for p in b.model.parameters():
            assert p.grad is not None
            p.grad *= 1 / b.scaler.get_scale()
        b.opt.step()


def unscaled_and_averaged_by_hand() -> None:
    b = Bench()
    for _ in range(3):
        b.opt.zero_grad()
        for _ in range(4):
            b.backward()
        for p in b.model.parameters():
            assert p.grad is not None
            p.grad *= 1 / (4 * SCALE)
        b.opt.step()
        b.scaler.update(SCALE / 2 if b.scaler.get_scale() == SCALE else SCALE)
        b.scaler.update(SCALE)


def gradient_penalty() -> None:
    b = Bench()
    b.x.requires_grad_(True)
    for _ in range(3):
        b.opt.zero_grad()
        loss = b.loss()
        (grad,) = torch.autograd.grad(b.scaler.scale(loss), b.x, create_graph=True)
        penalty = (grad / b.scaler.get_scale()).pow(2).sum()
        b.scaler.scale(loss + penalty).backward()
        b.scaler.unscale_(b.opt)
        b.clip()
        b.step()


def checkpointed() -> None:
    from torch.utils.checkpoint import checkpoint

    b = Bench()
    for _ in range(3):
        b.opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = checkpoint(lambda t: b.model(t).tanh() + 1.0, b.x, use_reentrant=False)
        b.scaler.scale(F.cross_entropy(out.float(), b.y)).backward()
        b.step()


def half_copy_refreshed() -> None:
    b = Bench()
    copies = [p.detach().half() for p in b.model.parameters()]
    for _ in range(4):
        b.opt.zero_grad()
        b.backward()
        b.step()
        with torch.no_grad():
            for c, p in zip(copies, b.model.parameters(), strict=True):
                c.lerp_(p.half(), 0.1)


def several_backwards_in_one_step_call() -> None:
    b = Bench(torch.optim.LBFGS, max_iter=3)

    def closure() -> Tensor:
        b.opt.zero_grad()
        loss = F.cross_entropy(b.model(b.x), b.y)
        loss.backward()
        return loss

    for _ in range(3):
        b.opt.step(closure)


def everything_switched_off_by_the_script() -> None:
    b = Bench()
    b.scaler = torch.amp.GradScaler("cpu", enabled=False)
    for _ in range(3):
        b.opt.zero_grad()
        b.scaler.scale(F.cross_entropy(b.model(b.x), b.y)).backward()
        b.scaler.unscale_(b.opt)
        b.clip()
        b.step()


class Attach(torch.autograd.Function):
    """Lets an auxiliary loss ride along in backward, with the gradient ``seed(aux)``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, aux: Tensor, seed: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(aux)
        ctx.seed = seed
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (aux,) = ctx.saved_tensors
        return grad, ctx.seed(aux), None


def attached(seed: Callable[[Bench, Tensor], Tensor]) -> Callable[[], None]:
    def loop() -> None:
        b = Bench()
        for _ in range(3):
            b.opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                out = b.model(b.x).float()
                aux = 0.5 * out.pow(2).mean()
                out = Attach.apply(out, aux, lambda t: seed(b, t))
            b.scaler.scale(F.cross_entropy(out, b.y)).backward()
            b.step()

    return loop


def filled_with_scale(b: Bench, aux: Tensor) -> Tensor:
    return torch.full_like(aux, 0.01 * b.scaler.get_scale())


def ones_times_scale(b: Bench, aux: Tensor) -> Tensor:
    return torch.ones_like(aux) * b.scaler.get_scale()


RIGHT: dict[str, Callable[[], None]] = {
    "accumulate, unscale, clip": accumulate_unscale_clip,
    "zeroed in place, averaged": gradients_zeroed_in_place_and_averaged,
    "two optimizers": two_optimizers_one_scaler,
    "static scale": static_scale_divided_by_hand,
    "master weights": master_weights,
    "bf16": bf16_without_scaler,
    "fused": fused_optimizer,
    "unscaled by hand": unscaled_by_hand,
    "unscaled and averaged by hand": unscaled_and_averaged_by_hand,
    "gradient penalty": gradient_penalty,
    "checkpoint": checkpointed,
    "half copy": half_copy_refreshed,
    "closure": several_backwards_in_one_step_call,
    "switched off": everything_switched_off_by_the_script,
    "auxiliary gradient filled with the scale": attached(filled_with_scale),
    "auxiliary gradient times the scale": attached(ones_times_scale),
}

# -- wrong ---------------------------------------------------------------------------------------


def wrong(body: Callable[[Bench], None], steps: int = 3) -> Callable[[], None]:
    """Gradients set to None, backward on the scaled loss, then ``body``."""

    def loop() -> None:
        b = Bench()
        for _ in range(steps):
            b.opt.zero_grad()
            b.backward()
            body(b)

    return loop


def clip_norm(b: Bench) -> None:
    b.clip()
    b.step()


def clip_value(b: Bench) -> None:
    nn.utils.clip_grad_value_(b.model.parameters(), 0.5)
    b.step()


def norm_by_hand(b: Bench) -> float:
    grads = [p.grad for p in b.model.parameters() if p.grad is not None]
    return sum(g.pow(2).sum() for g in grads).sqrt().item()  # type: ignore[union-attr]


def clip_by_hand(b: Bench) -> None:
    norm = norm_by_hand(b)
    if norm > 1:
        for p in b.model.parameters():
            if p.grad is not None:
                p.grad.mul_(1 / norm)
    b.step()


def read_norm(b: Bench) -> None:
    torch.linalg.vector_norm(next(b.model.parameters()).grad).item()  # type: ignore[arg-type]
    b.step()


def plain_step(b: Bench) -> None:
    b.opt.step()


def step_again(b: Bench) -> None:
    b.scaler.step(b.opt)
    b.opt.step()
    b.scaler.update()


def divide_then_step(b: Bench) -> None:
    for p in b.model.parameters():
        assert p.grad is not None
        p.grad /= SCALE
    b.step()


def scaled_by_hand_never_divided() -> None:
    b = Bench()
    for _ in range(3):
        b.opt.zero_grad()
        (b.loss() * SCALE).backward()
        b.opt.step()


def unscaled_in_each_micro_batch() -> None:
    b = Bench()
    for number in range(8):
        b.scaler.scale(b.loss() / 4).backward()
        b.scaler.unscale_(b.opt)
        b.scaler.update()
        if number % 4 == 3:
            b.step()
            b.opt.zero_grad()


def autocast_around_the_loop() -> None:
    b = Bench()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(3):
            b.opt.zero_grad()
            F.cross_entropy(b.model(b.x).float(), b.y).backward()
            b.opt.step()


def no_scale() -> None:
    b = Bench()
    for _ in range(3):
        b.opt.zero_grad()
        b.loss().backward()
        b.opt.step()


def scaler_in_bf16() -> None:
    b = Bench()
    for _ in range(3):
        b.opt.zero_grad()
        b.scaler.scale(b.loss(torch.bfloat16)).backward()
        b.step()


def log_of_softmax() -> None:
    b = Bench()
    for _ in range(3):
        b.opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            p = b.model(b.x).softmax(-1)
            loss = -p.gather(1, b.y[:, None]).log().mean()
        b.scaler.scale(loss).backward()
        b.step()
