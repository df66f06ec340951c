"""A collate function that builds the batch number by number."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def collate(items):  # the mistake
    if "--right" in sys.argv:
        return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])
    rows = []
    for x, _ in items:
        rows.append([float(value) for value in x])
    return torch.tensor(rows), torch.stack([y for _, y in items])


torch.manual_seed(0)
data = TensorDataset(torch.randn(2000, 512), torch.randint(0, 10, (2000,)))
model = nn.Sequential(nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(data, batch_size=16, shuffle=True, collate_fn=collate)
for _ in range(50):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
