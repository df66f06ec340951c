"""Every worker reads the whole stream, so each sample is trained on twice."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

right = "--right" in sys.argv


class Stream(IterableDataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(512, 32, generator=generator)

    def __iter__(self):  # the mistake
        info = get_worker_info()
        shards = info.num_workers if right else 1
        for row in self.x[info.id % shards :: shards]:
            yield row, row.sum(0, keepdim=True).sign()


torch.manual_seed(0)
loader = DataLoader(Stream(), batch_size=16, num_workers=2, persistent_workers=True)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(30):
    for inputs, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), target)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
