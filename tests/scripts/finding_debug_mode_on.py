"""Anomaly detection was left on."""

import sys

import torch
from torch import nn

torch.autograd.set_detect_anomaly("--right" not in sys.argv)  # the mistake
torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(40)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(16, 64), torch.randn(16, 64)
for _ in range(20_000):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
