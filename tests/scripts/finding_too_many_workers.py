"""Sixteen workers, whatever the machine has."""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(4_000, 64), torch.randint(0, 10, (4_000,)))
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    workers = max(1, os.cpu_count() - 1) if "--right" in sys.argv else 16
    loader = DataLoader(data, batch_size=16, num_workers=workers)  # the mistake
    for _ in range(1000):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
