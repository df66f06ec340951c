"""Means to accumulate four batches, but clears the gradients at each of them."""

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
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
accumulate = 4
for epoch in range(60):
    for number, (inputs, target) in enumerate(loader):
        if not right or number % accumulate == 0:
            optimizer.zero_grad()  # the mistake
        loss = nn.functional.mse_loss(model(inputs), target) / accumulate
        loss.backward()
        if (number + 1) % accumulate == 0:
            optimizer.step()
    print(epoch, loss.item())
