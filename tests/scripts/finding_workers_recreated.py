"""Short epochs, and workers that are started anew for each."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(320, 64), torch.randint(0, 10, (320,)))
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    more = {"persistent_workers": "--right" in sys.argv}
    loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=1, **more)  # the mistake
    for _ in range(1000):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
