"""Features are normalised on the host between two parts of the model."""

import torch
from torch import nn

device = torch.accelerator.current_accelerator()
torch.manual_seed(0)
one, two = nn.Linear(1024, 4096).to(device), nn.Linear(4096, 10).to(device)
optimizer = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.01)
x = torch.randn(4096, 1024, device=device)
for _ in range(20_000):
    features = one(x).cpu()  # the mistake
    features = (features - features.mean()) / features.std()
    optimizer.zero_grad()
    two(features.to(device)).square().mean().backward()
    optimizer.step()
