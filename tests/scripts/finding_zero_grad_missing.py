"""Nobody clears the gradients, so each step uses the sum of all that came before."""

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
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for epoch in range(60):
    for inputs, target in loader:
        if right:
            optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), target)
        loss.backward()  # the mistake
        optimizer.step()
    print(epoch, loss.item())
