"""A profiler that was used once records the whole training."""

import contextlib
import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.Tanh())])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(32, 64), torch.randn(32, 64)
profile = torch.profiler.profile if "--right" not in sys.argv else contextlib.nullcontext
with profile():  # the mistake
    for _ in range(20_000):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
