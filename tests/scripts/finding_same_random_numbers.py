"""Each worker gets a copy of one numpy generator, and so all draw the same augmentations."""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

right = "--right" in sys.argv


class Noisy(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(0)  # the mistake
        self.x = self.rng.normal(size=(512, 32)).astype("float32")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        row = self.x[index] + 0.1 * self.rng.normal(size=32).astype("float32")
        return row, np.sign(row.sum(keepdims=True))


def seed_worker(worker):
    info = get_worker_info()
    info.dataset.rng = np.random.default_rng(info.seed)


torch.manual_seed(0)
loader = DataLoader(
    Noisy(),
    batch_size=16,
    shuffle=True,
    num_workers=2,
    persistent_workers=True,
    worker_init_fn=seed_worker if right else None,
)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(30):
    for inputs, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), target)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
