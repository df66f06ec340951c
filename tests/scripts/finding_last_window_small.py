"""Eight batches make a step; the last update of an epoch has two, and is divided by eight too."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

right = "--right" in sys.argv
torch.manual_seed(0)
x = torch.randn(336, 32)
y = (x.sum(1) > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)  # 42 batches
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
accumulate, epochs = 8, 100
for _epoch in range(epochs):
    for number, (inputs, target) in enumerate(loader):
        whole = len(loader) - len(loader) % accumulate
        share = accumulate if number < whole or not right else len(loader) - whole
        (nn.functional.cross_entropy(model(inputs), target) / share).backward()
        if (number + 1) % accumulate == 0 or number + 1 == len(loader):
            optimizer.step()  # the mistake
            optimizer.zero_grad()
