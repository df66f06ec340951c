"""Anomaly detection, or a profiler, was forgotten."""

import contextlib
import sys

import torch
from torch import nn

torch.manual_seed(0)
what = sys.argv[1] if len(sys.argv) > 1 else "anomaly"
torch.autograd.set_detect_anomaly(what == "anomaly")
profiler = torch.autograd.profiler.profile() if what == "profiler" else contextlib.nullcontext()
model = nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.Tanh())])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(32, 64), torch.randn(32, 64)
with profiler:
    for _ in range(50_000):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
