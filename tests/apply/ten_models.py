"""Ten models of different kinds, each with modules to keep in fp32; all of them small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Cast = Callable[[Tensor], Tensor]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp, self.mid, self.out = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.mid(torch.relu(self.inp(x)))))


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3)
        )
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).reshape(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).reshape(x.shape))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(8), Attention()
        self.norm2, self.ffn = (
            nn.LayerNorm(8),
            nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)),
        )
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        x = x + self.ffn(self.norm2(x))
        return self.head(x.mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(6, 8, batch_first=True), nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(x)
        hidden, _ = self.gru(hidden)
        return self.head(hidden[:, -1])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.mid = nn.Embedding(11, 8), nn.Linear(8, 8)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.mid(self.tokens(ids))))


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.head = nn.Linear(6, 3), nn.Linear(6, 3)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 12), nn.SiLU(), nn.Linear(12, 6)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = torch.softmax(self.router(x), -1).topk(2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            share = (weights * (chosen == number)).sum(-1, keepdim=True)
            out = out + share * expert(x)
        return self.head(out + x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(torch.relu(self.norm(x)))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(1, 4, 1), nn.Sequential(Block(), Block())
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 3 * x * x


class Cube(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Cubed.apply(x)


class WithFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp, self.cube, self.out = nn.Linear(6, 8), Cube(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.cube(self.inp(x)))


@dataclass
class Output:
    logits: Tensor
    extra: dict[str, Tensor]


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main, self.side = nn.Linear(8, 3), nn.Linear(8, 8)

    def forward(self, given: dict[str, Tensor], *, gain: Tensor) -> Output:
        return Output(self.main(given["h"]) * gain, {"side": self.side(given["h"])})


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp, self.heads, self.out = nn.Linear(6, 8), Heads(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.inp(x)
        given = self.heads({"h": hidden}, gain=hidden.mean())
        return {"logits": given.logits + self.out(given.extra["side"])}


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(4, 4, 2, stride=2), nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = torch.relu(self.down(x))
        low = torch.relu(self.deep(F.max_pool2d(skip, 2)))
        return self.last(torch.cat([self.up(low), skip], 1)).mean((2, 3))


@dataclass(frozen=True)
class Sample:
    """A model, the shape of its batch, and the keep-lists to try."""

    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    keeps: tuple[tuple[str, ...], ...]
    dtype: torch.dtype = torch.float16
    tokens: bool = False

    def loss(self, factor: float) -> Callable[[nn.Module, Cast], Tensor]:
        """The training's loss; a factor of 2**16 or so is too large for fp16's gradients."""

        def of(model: nn.Module, cast: Cast) -> Tensor:
            draw = torch.Generator().manual_seed(1)
            if self.tokens:
                batch = torch.randint(0, 11, self.shape, generator=draw)
            else:
                batch = cast(torch.randn(self.shape, generator=draw))
            out = model(batch)
            logits = (out["logits"] if isinstance(out, dict) else out).float()
            logits = logits.reshape(-1, logits.shape[-1])
            wanted = torch.randint(0, logits.shape[-1], (len(logits),), generator=draw)
            return F.cross_entropy(logits, wanted) * factor

        return of


SAMPLES = {
    "mlp": Sample(Mlp, (5, 6), (("mid",), ("inp", "out"))),
    "cnn": Sample(Cnn, (4, 1, 6, 6), (("body.0",), ("body.1", "body.3"))),
    "encoder": Sample(Encoder, (3, 4, 8), (("ffn.2",), ("attn",), ("norm1",))),
    "recurrent": Sample(Recurrent, (3, 4, 6), (("lstm",), ("gru", "head")), torch.bfloat16),
    "tied": Sample(Tied, (3, 4), (("head",), ("mid",)), tokens=True),
    "experts": Sample(Experts, (5, 6), (("router",), ("experts.1",))),
    "residual": Sample(Residual, (2, 1, 6, 6), (("blocks.0",), ("blocks.1.norm",))),
    "function": Sample(WithFunction, (5, 6), (("cube",), ("inp",))),
    "structured": Sample(Structured, (5, 6), (("heads",), ("heads.side",))),
    "unet": Sample(UNet, (2, 1, 6, 6), (("deep",), ("up",))),
}
