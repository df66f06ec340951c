"""Batches of 4 MiB, sixteen of them on their way: too many for a small /dev/shm."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.002)  # so the queue never fills while anybody looks
        return torch.full((1024, 64), float(index)), index % 10


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ahead = 2 if "--right" in sys.argv else 16
    loader = DataLoader(Volumes(), 16, num_workers=1, prefetch_factor=ahead)  # the mistake
    for _ in range(100):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[:, 0]), y).backward()
            optimizer.step()
