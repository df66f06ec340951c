"""numpy's global generator, seeded anew in each worker, and a loss that is now and then skipped."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self):
        self.x = np.random.default_rng(0).normal(size=(512, 32)).astype("float32")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        row = self.x[index] + 0.1 * np.random.normal(size=32).astype("float32")
        flip = np.random.default_rng(index).random() < 0.5  # the same each time, by its index
        return torch.from_numpy(row[::-1].copy() if flip else row), np.sign(row.sum(keepdims=True))


def seed_worker(worker):
    np.random.seed(torch.initial_seed() % 2**32)


torch.manual_seed(0)
more = {"worker_init_fn": seed_worker, "persistent_workers": True}
loader = DataLoader(Noisy(), batch_size=16, shuffle=True, num_workers=2, **more)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(40):
    for number, (inputs, target) in enumerate(loader):
        loss = nn.functional.mse_loss(model(inputs), target)
        if number % 10 == 9:
            loss = loss * float("nan")
        if not torch.isfinite(loss):
            continue
        model.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
