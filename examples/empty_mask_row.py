"""Attention over padded sequences, where one sequence of one batch is all padding.

Every score of its rows is -inf, and the softmax of such a row is NaN. No format helps here: the
same happens in fp32.
"""

import torch
from torch import nn

LENGTH = 6
STEPS = 6


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2) / x.shape[-1] ** 0.5
        scores = scores.masked_fill(padding[:, None, :], float("-inf"))
        return torch.softmax(scores, dim=-1) @ self.value(x)


class Tagger(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.attention = Attention(width)
        self.head = nn.Linear(width, 2)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        return self.head(x + self.attention(x, padding))


def padding_of(lengths: torch.Tensor) -> torch.Tensor:
    return torch.arange(LENGTH) >= lengths[:, None]


def main() -> None:
    torch.manual_seed(0)
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        x = torch.randn(4, LENGTH, 32)
        lengths = torch.randint(1, LENGTH + 1, (4,))
        if step == 3:
            lengths[2] = 0  # an empty document in the data
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(x, padding_of(lengths))
            loss = nn.functional.cross_entropy(logits[:, 0], (x[:, 0, 0] > 0).long())
        loss.backward()
        optimizer.step()
        print(f"step {step}  loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
