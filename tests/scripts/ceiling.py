"""Each batch takes processor time that is planted; with --memory all batches are there already."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PLANTED = 0.006  # seconds of processor time a batch
BATCH = 256
memory = "--memory" in sys.argv
made = []  # the sizes of batches that were made


class Rows(Dataset):
    def __init__(self):
        self.x = torch.randn(100 * BATCH, 512)

    def __len__(self):
        return len(self.x)

    def __getitems__(self, indices):
        made.append(len(indices))
        if not memory:
            end = time.process_time() + PLANTED
            while time.process_time() < end:
                pass
        return self.x[indices[0] : indices[0] + len(indices)]


def identity(rows):
    return rows


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 512))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Rows(), batch_size=BATCH, collate_fn=identity)
for _ in range(100_000):
    for x in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x).backward()
        optimizer.step()
