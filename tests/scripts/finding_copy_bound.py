"""The whole table goes to the accelerator in every iteration."""

import torch
from torch import nn

device = torch.accelerator.current_accelerator()
torch.manual_seed(0)
model = nn.Linear(1024, 10).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
table = torch.randn(131072, 1024)
for _ in range(20_000):
    x = table.to(device)  # the mistake
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
