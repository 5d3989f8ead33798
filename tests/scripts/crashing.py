"""Trains two good steps, then a batch has another shape: torch raises inside the model."""

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.head(x)


def main():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for width in (4, 4, 5):
        loss = model(torch.ones(3, width)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
