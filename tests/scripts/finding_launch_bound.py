"""Hundreds of tiny operations, each shorter than its launch."""

import torch
from torch import nn

device = torch.accelerator.current_accelerator()
torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(200)]).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(8, 16, device=device), torch.randn(8, 16, device=device)
for _ in range(20_000):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()  # the mistake
    optimizer.step()
