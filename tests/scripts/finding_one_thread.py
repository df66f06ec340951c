"""One thread for a model that could use all cores."""

import os
import sys

import torch
from torch import nn

torch.set_num_threads(os.cpu_count() if "--right" in sys.argv else 1)  # the mistake
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(512, 1024), torch.randn(512, 1024)
for _ in range(20_000):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
