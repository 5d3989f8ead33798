"""Trains in a thread of its own while the main thread waits."""

import threading

import torch


def train() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()


thread = threading.Thread(target=train)
thread.start()
thread.join()
print("done")
