"""Learns something in sixty iterations: epochs, dropout, a schedule, a frozen and an unused layer.

It seeds itself, saves a checkpoint an epoch and prints its accuracy. Arguments: epochs, workers.
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(20, 32)
        self.embed.requires_grad_(False)
        self.unused = nn.Linear(4, 4)
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))

    def forward(self, x):
        return self.layers(self.embed(x))


def main():
    epochs, workers = (int(a) for a in (*sys.argv[1:], "3", "0")[:2])
    torch.manual_seed(0)
    x = torch.randn(640, 20)
    data = TensorDataset(x, (x[:, :3].sum(1) > 0).long())
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    order = torch.Generator().manual_seed(1)
    loader = DataLoader(data, 32, shuffle=True, generator=order, num_workers=workers)
    for epoch in range(epochs):
        right = 0
        for inputs, target in loader:
            optimizer.zero_grad()
            output = model(inputs)
            loss = nn.functional.cross_entropy(output, target)
            loss.backward()
            optimizer.step()
            right += (output.argmax(1) == target).sum().item()
        scheduler.step()
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "verified.pt"
        )
        print(f"epoch {epoch}: accuracy {right / len(data):.4f}")


if __name__ == "__main__":
    main()
