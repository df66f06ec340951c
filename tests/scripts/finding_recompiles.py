"""A compiled model that meets another length in nearly every batch."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
right = "--right" in sys.argv
compiled = torch.compile(model, dynamic=right, backend="aot_eager")  # the mistake
torch._dynamo.config.recompile_limit = 10_000
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for length in range(8, 20_000):
    x, y = torch.randn(length, 32), torch.randn(length, 32)
    loss = nn.functional.mse_loss(compiled(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
