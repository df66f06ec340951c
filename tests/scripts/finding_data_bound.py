"""Two workers that wait for a slow disk are not enough for a fast model."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Files(Dataset):
    def __len__(self):
        return 20_000

    def __getitem__(self, index):
        if "--right" not in sys.argv:
            time.sleep(0.003)  # reading a file takes this long, and no processor time
        return torch.full((64,), index / 20_000), index % 10


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Files(), batch_size=8, num_workers=2, persistent_workers=True)
    for _ in range(100):
        for x, y in loader:  # the mistake
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
