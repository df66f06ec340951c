"""Trains on a loader of 8 samples a batch with its learning rate on the way up; says what it did.

With arguments BATCH LR it is written for another batch size and rate.
"""

import hashlib
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

size, rate = (int(sys.argv[1]), float(sys.argv[2])) if len(sys.argv) > 1 else (8, 0.01)
torch.manual_seed(0)
samples = torch.randn(96, 12)
loader = DataLoader(TensorDataset(samples, samples.sum(1)), batch_size=size, shuffle=True)
model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=3 * len(loader))
for _epoch in range(3):
    for batch, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(batch)[:, 0], targets).backward()
        optimizer.step()
        scheduler.step()
weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print("batches", len(loader))
print("rate", optimizer.param_groups[0]["lr"])
print("weights", hashlib.sha256(weights).hexdigest())
