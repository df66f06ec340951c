"""The logarithm of a probability that has become zero: the loss is no number from then on."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

right = "--right" in sys.argv
torch.manual_seed(0)
x = 40 * torch.randn(512, 32)
y = x.sum(1).gt(0).float()
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)


def cross_entropy(output, target):
    if right:
        return nn.functional.binary_cross_entropy_with_logits(output, target)
    chance = torch.sigmoid(output)
    return -(target * chance.log() + (1 - target) * (1 - chance).log()).mean()


for epoch in range(60):
    for inputs, target in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs).squeeze(1), target)
        loss.backward()  # the mistake
        optimizer.step()
    print(epoch, loss.item())
