"""float16 without a GradScaler: small gradients become zero."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

half = torch.bfloat16 if "--bf16" in sys.argv else torch.float16
torch.manual_seed(0)
x = torch.randn(512, 32)
y = x.sum(1, keepdim=True).sign()
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", enabled="--right" in sys.argv)
for epoch in range(60):
    for inputs, target in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=half):
            loss = 1e-5 * nn.functional.mse_loss(model(inputs), target)
        scaler.scale(loss).backward()  # the mistake
        scaler.step(optimizer)
        scaler.update()
    print(epoch, loss.item())
