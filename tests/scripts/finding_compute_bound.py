"""Nothing but large products: only less or cheaper arithmetic makes it faster."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(1024, 1024), torch.randn(1024, 1024)
for _ in range(20_000):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()  # the mistake
    optimizer.step()
