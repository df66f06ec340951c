"""The whole model computes in float64."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
model.double()  # the mistake
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(256, 512).double(), torch.randn(256, 512).double()
for _ in range(20_000):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
