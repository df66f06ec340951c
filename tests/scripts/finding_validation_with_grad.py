"""Validation builds a graph for every batch, which nobody uses."""

import contextlib
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

without_graph = torch.inference_mode if "--right" in sys.argv else contextlib.nullcontext
torch.manual_seed(0)
x = torch.randn(768, 32)
y = x.sum(1, keepdim=True).sign()
loader = DataLoader(TensorDataset(x[:512], y[:512]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(x[512:], y[512:]), batch_size=64)
model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def validate():
    model.eval()
    correct = 0
    with without_graph():
        for inputs, target in held_out:
            output = model(inputs)  # the mistake
            correct += (output.sign() == target).sum().item()
    return correct / 256


for epoch in range(60):
    model.train()
    for inputs, target in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), target).backward()
        optimizer.step()
    print(epoch, validate())
