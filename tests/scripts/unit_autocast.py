"""Written for a GPU: its own autocast (bfloat16, or float16 if told so), on a CPU."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
dtype = getattr(torch, sys.argv[1] if len(sys.argv) > 1 else "bfloat16")
model = nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(96, 96), nn.GELU())])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(64, 96), torch.randn(64, 96)
for _ in range(50_000):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=dtype):
        out = model(x)
    nn.functional.mse_loss(out.float(), y).backward()
    optimizer.step()
