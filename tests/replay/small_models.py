"""A language model and a recurrent one, small, with a loss on random batches each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.ffn = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Dropout(0.2))
        self.down = nn.Linear(32, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.down(self.ffn(x))


class Language(nn.Module):
    def __init__(self, checkpointed: str = "") -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(16, 20)
        self.checkpointed = checkpointed

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.dropout(self.embed(tokens), 0.1, self.training)
        for block in self.blocks:
            if self.checkpointed:
                x = checkpoint(block, x, use_reentrant=self.checkpointed == "reentrant")
            else:
                x = block(x)
        return self.head(x)


def next_token(model: nn.Module) -> Callable[[], Tensor]:
    def loss() -> Tensor:
        tokens = torch.randint(0, 20, (4, 9))
        logits = model(tokens[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())

    return loss


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(6, 10, num_layers=2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


def classify(model: nn.Module) -> Callable[[], Tensor]:
    return lambda: F.cross_entropy(model(torch.randn(4, 5, 6)), torch.randint(0, 3, (4,)))
