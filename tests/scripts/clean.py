"""Trains a little model in fp32 for six steps, and nothing is wrong; saves it at the end."""

import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--save")
options = parser.parse_args()

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs = torch.randn(32, 8)
targets = inputs.sum(1, keepdim=True)
for _ in range(6):
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.9g}")
if options.save:
    torch.save(model, options.save)
