"""A small language model whose feed-forward block leaves fp16's range when a rare token comes up.

The weights come from elsewhere, and the token's embedding is long. The block squares its
activations; they still fit, but the sums of its second projection pass 65504 for that token: inf
there, NaN in the LayerNorm behind it.
"""

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY = 64
RARE = 63  # shows up in step 4 for the first time
STEPS = 8


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.relu(self.up(x)).square())


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ffn = FeedForward(width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.ffn(x))


class LanguageModel(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(tokens)))


def load_weights(model: LanguageModel) -> None:
    """Stand in for a checkpoint that was trained in bf16, where 65504 is no limit."""
    with torch.no_grad():
        model.embed.weight[RARE] *= 150
        for block in model.blocks:
            block.ffn.down.weight *= 8


def batches() -> list[torch.Tensor]:
    tokens = torch.randint(0, VOCABULARY - 1, (STEPS, 8, 16))
    tokens[4, 5, 9] = RARE
    return list(tokens)


def main() -> None:
    torch.manual_seed(0)
    model = LanguageModel()
    load_weights(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, tokens in enumerate(batches()):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        print(f"step {step}  loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
