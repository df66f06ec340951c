"""The whole model computes in float64."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
double = torch.float32 if "--right" in sys.argv else torch.float64
model.to(double)  # the mistake
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(256, 512, dtype=double), torch.randn(256, 512, dtype=double)
for _ in range(20_000):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
