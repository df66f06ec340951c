"""Momentum of rows that get no gradient any more has decayed to denormal numbers."""

import torch
from torch import nn

torch.manual_seed(0)
table = nn.Embedding(40_000, 64)
model = nn.Sequential(table, nn.Flatten(), nn.Linear(64 * 8, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
y = torch.randint(0, 10, (32,))
for index in range(20_000):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.randint(0, 500, (32, 8))), y).backward()
    optimizer.step()
    if index == 0:  # what nine hundred further iterations come to
        optimizer.state[table.weight]["momentum_buffer"].fill_(1e-40)
