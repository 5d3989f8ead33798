"""A small classifier trained in fp16 autocast with a loss scale. Nothing is wrong with it."""

import torch
from torch import nn

STEPS = 20


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Classifier(nn.Module):
    def __init__(self, features: int = 16, width: int = 32, classes: int = 4) -> None:
        super().__init__()
        self.stem = nn.Linear(features, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)))


def main() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(256, 16)
    targets = (inputs @ torch.randn(16, 4)).argmax(dim=1)

    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(STEPS):
        batch = torch.randint(0, len(inputs), (32,))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(inputs[batch])
            loss = nn.functional.cross_entropy(logits, targets[batch])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"step {step:2d}  loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
