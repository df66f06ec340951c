"""Each worker seeds numpy's global generator by the same constant."""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

right = "--right" in sys.argv


class Noisy(Dataset):
    def __init__(self):
        self.x = np.random.default_rng(0).normal(size=(512, 32)).astype("float32")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        row = self.x[index] + 0.1 * np.random.normal(size=32).astype("float32")
        return row, np.sign(row.sum(keepdims=True))


def seed_worker(worker):  # the mistake
    np.random.seed(worker if right else 42)


torch.manual_seed(0)
loader = DataLoader(Noisy(), batch_size=16, shuffle=True, num_workers=2, worker_init_fn=seed_worker)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(40):
    for inputs, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), target)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
