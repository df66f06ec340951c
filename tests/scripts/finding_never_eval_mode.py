"""Validation runs in training mode: dropout drops, and batch norm learns from held-out data."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

right = "--right" in sys.argv
torch.manual_seed(0)
x = torch.randn(768, 32)
y = x.sum(1, keepdim=True).sign()
loader = DataLoader(TensorDataset(x[:512], y[:512]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(x[512:], y[512:]), batch_size=64)
model = nn.Sequential(
    nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 1)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


@torch.no_grad()
def validate():
    if right:
        model.eval()
    correct = 0
    for inputs, target in held_out:
        output = model(inputs)  # the mistake
        correct += (output.sign() == target).sum().item()
    model.train()
    return correct / 256


for epoch in range(60):
    for inputs, target in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), target).backward()
        optimizer.step()
    print(epoch, validate())
