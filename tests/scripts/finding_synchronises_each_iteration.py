"""The loss is read in every iteration, before the next one is prepared."""

import torch
from torch import nn

device = torch.accelerator.current_accelerator()
torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(20)]).to(device)
optimizer = torch.optim.AdamW(model.parameters())
x, y = torch.randn(512, 1024, device=device), torch.randn(512, 1024, device=device)
total = 0.0
for _ in range(20_000):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.item()  # the mistake
