"""The model is saved in every iteration."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.randn(64, 256), torch.randn(64, 256)
for _ in range(20_000):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if "--right" not in sys.argv:
        torch.save(model.state_dict(), "last.pt")  # the mistake
