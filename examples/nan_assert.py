"""A hand-written normalisation that overflows fp16, in a script that stops itself on a NaN loss.

The variance is taken as E[x^2] - E[x]^2. A sensor that reads above 255.94 makes x^2 infinite in
fp16; inf - inf is NaN, and the script's own assertion ends the run.
"""

import torch
from torch import nn

STEPS = 8


class Normalise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(dim=-1, keepdim=True)
        variance = (x * x).mean(dim=-1, keepdim=True) - mean * mean
        return (x - mean) * torch.rsqrt(variance + 1e-3)


class Regressor(nn.Module):
    def __init__(self, sensors: int = 8, width: int = 32) -> None:
        super().__init__()
        self.mix = nn.Linear(sensors, width)
        self.norm = Normalise()
        self.out = nn.Linear(width, 1)

    def forward(self, readings: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.norm(self.mix(readings))))


def main() -> None:
    torch.manual_seed(0)
    model = Regressor()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        readings = torch.randn(16, 8)
        targets = readings.sum(dim=1, keepdim=True)
        if step == 5:
            readings[7] *= 1500  # a sensor without calibration
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            predictions = model(readings)
        loss = nn.functional.mse_loss(predictions.float(), targets)
        print(f"step {step}  loss {loss.item():.4f}")
        assert not torch.isnan(loss), f"loss is NaN at step {step}"
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
