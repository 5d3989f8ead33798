"""Distillation with the logarithm taken after the softmax.

fp16's smallest magnitude is 2^-24. Once the student is sure enough, a probability becomes 0 in the
softmax, its logarithm -inf, and -inf times the teacher's 0 is NaN.
"""

import torch
from torch import nn

CLASSES = 8
STEPS = 12


class Student(nn.Module):
    def __init__(self, features: int = 16, width: int = 64) -> None:
        super().__init__()
        self.hidden = nn.Linear(features, width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.hidden(x)))


def cross_entropy(logits: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    probabilities = torch.softmax(logits, dim=-1)
    return -(teacher * torch.log(probabilities)).sum(dim=-1).mean()


def main() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(128, 16)
    classes = (inputs @ torch.randn(16, CLASSES)).argmax(dim=1)
    teacher = nn.functional.one_hot(classes, CLASSES).half()

    model = Student()
    optimizer = torch.optim.SGD(model.parameters(), lr=4.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(model(inputs), teacher)
        loss.backward()
        optimizer.step()
        print(f"step {step:2d}  loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
