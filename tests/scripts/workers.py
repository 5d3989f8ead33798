"""Trains from a DataLoader whose worker processes unpickle this file's dataset."""

import sys

import torch


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor([float(index)]) ** 2


def main():
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader = torch.utils.data.DataLoader(
        Squares(), batch_size=4, num_workers=1, multiprocessing_context=sys.argv[1]
    )
    for batch in loader:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.6g}")


if __name__ == "__main__":
    main()
