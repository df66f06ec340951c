"""There is an accelerator, and nobody uses it."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 2048))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(512, 2048), torch.randn(512, 2048)
for _ in range(20_000):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()  # the mistake
    optimizer.step()
