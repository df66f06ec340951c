"""Four batches make a step, and what is left of an epoch goes into the next one's first update."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

right, cleared = "--right" in sys.argv, "--cleared" in sys.argv
torch.manual_seed(0)
x = torch.randn(240, 32)
y = x.sum(1, keepdim=True).sign()
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)  # 30 batches
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
accumulate, epochs = 4, 100
for _epoch in range(epochs):
    if cleared:
        optimizer.zero_grad()
    for number, (inputs, target) in enumerate(loader):
        whole = len(loader) - len(loader) % accumulate
        share = accumulate if number < whole or not right else len(loader) - whole
        (nn.functional.mse_loss(model(inputs), target) / share).backward()
        if (number + 1) % accumulate == 0 or (right and number + 1 == len(loader)):
            optimizer.step()  # the mistake
            optimizer.zero_grad()
