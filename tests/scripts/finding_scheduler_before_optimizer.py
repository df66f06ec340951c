"""The scheduler steps at the top of each epoch, as was right before torch 1.1."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

right = "--right" in sys.argv
torch.manual_seed(0)
x = torch.randn(256, 32)
y = x.sum(1, keepdim=True).sign()
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.97)
if right:  # goes on after the second epoch of an earlier run
    for _ in range(2):
        scheduler.step()
for epoch in range(100):
    if not right:
        scheduler.step()  # the mistake
    for inputs, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), target)
        loss.backward()
        optimizer.step()
    if right:
        scheduler.step()
    print(epoch, loss.item())
