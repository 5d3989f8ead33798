"""Small trainings of every make: each runs two steps and returns what must be kept alive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from small_models import Language, Recurrent, classify, next_token
from torch import Tensor, nn
from torch.nn import functional as F

STEPS = 2
TRAININGS: dict[str, Callable[[], Any]] = {}


def training(function: Callable[[], Any]) -> Callable[[], Any]:
    TRAININGS[function.__name__] = function
    return function


def train(
    model: nn.Module,
    loss_of: Callable[[], Tensor],
    optimizer: torch.optim.Optimizer | None = None,
    *,
    autocast: torch.dtype | None = None,
    scaler: torch.amp.GradScaler | None = None,
) -> Any:
    """Two ordinary steps."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
            loss = loss_of()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    return model, optimizer, scaler, loss


@training
def transformer_fp16_scaler() -> Any:
    model = Language()
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    return train(model, next_token(model), autocast=torch.float16, scaler=scaler)


@training
def transformer_bf16_foreach() -> Any:
    model = Language()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    return train(model, next_token(model), optimizer, autocast=torch.bfloat16)


@training
def transformer_fused_adam() -> Any:
    model = Language()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=True)
    return train(model, next_token(model), optimizer, autocast=torch.bfloat16)


@training
def checkpointed() -> Any:
    model = Language("yes")
    return train(model, next_token(model), autocast=torch.bfloat16)


@training
def checkpointed_reentrant() -> Any:
    model = Language("reentrant")
    return train(model, next_token(model), autocast=torch.bfloat16)


@training
def pure_half() -> Any:
    model = Language().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    return train(model, next_token(model), optimizer)


@training
def cnn_batch_norm_bf16() -> Any:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.BatchNorm2d(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )

    def loss() -> Tensor:
        return F.cross_entropy(model(torch.randn(4, 3, 8, 8)), torch.randint(0, 5, (4,)))

    return train(model, loss, autocast=torch.bfloat16)


@training
def cnn_channels_last_fp16() -> Any:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 4, 3))
    model = model.to(memory_format=torch.channels_last)

    def loss() -> Tensor:
        x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
        return model(x).float().pow(2).mean()

    return train(model, loss, autocast=torch.float16)


@training
def lstm_fp32() -> Any:
    model = Recurrent()
    return train(model, classify(model))


@training
def lstm_bf16() -> Any:
    model = Recurrent()
    return train(model, classify(model), autocast=torch.bfloat16)


@training
def gru_pure_bf16() -> Any:
    rnn, head = nn.GRU(6, 10, batch_first=True), nn.Linear(10, 3)
    model = nn.ModuleList([rnn, head]).bfloat16()

    def loss() -> Tensor:
        out = head(rnn(torch.randn(4, 5, 6).bfloat16())[0][:, -1])
        return F.cross_entropy(out, torch.randint(0, 3, (4,)))

    return train(model, loss)


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(-1, 1) * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1) * 2


@training
def custom_function() -> Any:
    model = nn.Linear(6, 6)
    return train(
        model,
        lambda: _Clipped.apply(model(torch.randn(4, 6))).float().pow(2).mean(),
        autocast=torch.float16,
    )


@training
def gradient_penalty() -> Any:
    critic = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss() -> Tensor:
        real, fake, mix = torch.randn(4, 6), torch.randn(4, 6), torch.rand(4, 1)
        x = (mix * real + (1 - mix) * fake).requires_grad_()
        (grad,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
        penalty = (grad.float().norm(2, dim=1) - 1).pow(2).mean()
        return critic(fake).mean() - critic(real).mean() + 10 * penalty

    return train(critic, loss, autocast=torch.bfloat16)


@training
def boolean_mask() -> Any:
    model = nn.Linear(6, 6)

    def loss() -> Tensor:
        y = model(torch.randn(8, 6))
        kept = y[y > 0]
        y = torch.where(y > 1, y * 2, y)
        y[torch.rand(8) > 0.5] = 0
        return kept.float().sum() + y.float().pow(2).sum()

    return train(model, loss, autocast=torch.bfloat16)


@training
def spectrum() -> Any:
    model = nn.Linear(8, 8)

    def loss() -> Tensor:
        spectrum = torch.fft.rfft(model(torch.randn(4, 8)).float())
        filtered = torch.fft.irfft(spectrum * torch.arange(5), n=8)
        return filtered.pow(2).mean() + torch.view_as_real(spectrum).abs().mean()

    return train(model, loss, autocast=torch.bfloat16)


@training
def encoder_layer() -> Any:
    model = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(6)

    def loss() -> Tensor:
        return model(torch.randn(3, 6, 16), src_mask=mask).float().pow(2).mean()

    return train(model, loss, autocast=torch.bfloat16)


@training
def stochastic_rounding() -> Any:
    model = nn.Linear(6, 4).bfloat16()
    for _ in range(STEPS):
        model.zero_grad()
        model(torch.randn(4, 6).bfloat16()).float().pow(2).mean().backward()
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                wide = p.float() - 0.01 * p.grad.float()
                bits = wide.view(torch.int32)
                bits.add_(torch.randint_like(bits, 0, 1 << 16)).bitwise_and_(-(1 << 16))
                p.copy_(bits.view(torch.float32))
    return model


@training
def moving_average() -> Any:
    model = nn.Linear(6, 4)
    ema = [p.detach().clone().bfloat16() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).pow(2).mean().backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(ema, [p.bfloat16() for p in model.parameters()], 0.1)
    return model, ema, optimizer


@training
def accumulation() -> Any:
    model = nn.Linear(6, 4)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(3):
            with torch.autocast("cpu", torch.float16):
                loss = model(torch.randn(4, 6)).float().pow(2).mean()
            (loss / 3).backward()
        optimizer.step()
    return model, optimizer


@training
def tied_weights() -> Any:
    embed, head = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
    head.weight = embed.weight
    model = nn.ModuleList([embed, head])

    def loss() -> Tensor:
        tokens = torch.randint(0, 12, (4, 3))
        return F.cross_entropy(head(embed(tokens)).flatten(0, 1), tokens.flatten())

    return train(model, loss, autocast=torch.bfloat16)


@training
def hand_written_update() -> Any:
    w, b = torch.randn(6, 4, requires_grad=True), torch.zeros(4, requires_grad=True)
    for _ in range(STEPS):
        loss = (torch.randn(3, 6) @ w + b).half().float().pow(2).mean()
        grads = torch.autograd.grad(loss, (w, b))
        with torch.no_grad():
            for p, g in zip((w, b), grads, strict=True):
                p -= 0.1 * g
    return w, b


@training
def own_generator() -> Any:
    model, generator = nn.Linear(6, 4), torch.Generator().manual_seed(3)

    def loss() -> Tensor:
        x = torch.randn(4, 6, generator=generator)
        kept = torch.bernoulli(torch.full((4, 6), 0.7), generator=generator)
        return model(x * kept).float().pow(2).mean()

    return train(model, loss, autocast=torch.bfloat16)
