"""Sixteen threads, whatever the machine has."""

import os
import sys

import torch
from torch import nn

torch.set_num_threads(os.cpu_count() if "--right" in sys.argv else 16)  # the mistake
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(128, 256), torch.randn(128, 256)
for _ in range(20_000):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
