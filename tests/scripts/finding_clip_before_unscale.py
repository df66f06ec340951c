"""Gradients are clipped while they are still multiplied by the scale."""

import sys

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset

right = "--right" in sys.argv
torch.manual_seed(0)
x = torch.randn(512, 32)
y = x.sum(1, keepdim=True).sign()
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
for epoch in range(60):
    for inputs, target in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(inputs), target)
        scaler.scale(loss).backward()
        if right:
            scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)  # the mistake
        scaler.step(optimizer)
        scaler.update()
    print(epoch, loss.item())
