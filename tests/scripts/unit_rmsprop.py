"""An optimizer without a fused implementation, and many parameters for small batches."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*[layer for _ in range(30) for layer in (nn.Linear(192, 192), nn.ReLU())])
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4, momentum=0.9, centered=True)
x, y = torch.randn(8, 192), torch.randn(8, 192)
for _ in range(20_000):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
