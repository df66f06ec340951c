"""Hundreds of small parameters, and an optimizer that takes them one by one."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(24, 24) for _ in range(120)])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused="--right" in sys.argv)
x, y = torch.randn(16, 24), torch.randn(16, 24)
for _ in range(20_000):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # the mistake
