"""Four batches make a step, but gradients are unscaled and clipped at each of them."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

right = "--right" in sys.argv
torch.manual_seed(0)
x = torch.randn(512, 32)
y = x.sum(1, keepdim=True).sign()
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
accumulate = 4
for _epoch in range(100):
    for number, (inputs, target) in enumerate(loader):
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.mse_loss(model(inputs), target.bfloat16()) / accumulate
        scaler.scale(loss).backward()
        last = (number + 1) % accumulate == 0
        if last or not right:
            scaler.unscale_(optimizer)  # the mistake
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if last:
            scaler.step(optimizer)
            optimizer.zero_grad()
        if last or not right:
            scaler.update()
