"""The outputs of every iteration are collected and never looked at."""

import sys

import torch
from torch import nn

right = "--right" in sys.argv
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(256, 256), torch.randn(256, 512)
outputs = []
for _ in range(2_000):
    optimizer.zero_grad()
    out = model(x)
    nn.functional.mse_loss(out, y).backward()
    optimizer.step()
    if right:
        outputs.append(out.detach().mean().item())
    else:
        outputs.append(out.detach())  # the mistake
