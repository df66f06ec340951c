"""Gradients are cleared between the backward pass and the step: nothing is ever learnt."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

right = "--right" in sys.argv
torch.manual_seed(0)
x = torch.randn(512, 32)
y = x.sum(1, keepdim=True).sign()
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
for epoch in range(60):
    for inputs, target in loader:
        loss = nn.functional.mse_loss(model(inputs), target)
        loss.backward()
        if not right:
            optimizer.zero_grad(set_to_none=True)  # the mistake
        optimizer.step()
        if right:
            optimizer.zero_grad(set_to_none=True)
    print(epoch, loss.item())
