"""Training and validation loaders built alike, shuffling both."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
training = DataLoader(TensorDataset(torch.randn(160, 8)), batch_size=16, shuffle=True)
validation = DataLoader(TensorDataset(torch.randn(320, 8)), batch_size=16, shuffle=True)
for _ in range(10_000):
    model.train()
    for (x,) in training:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    careless = bool(os.environ.get("CARELESS"))
    model.train(careless)
    with torch.set_grad_enabled(careless):
        for (x,) in validation:
            model(x)
