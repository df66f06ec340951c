"""An IterableDataset."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(1)
        for _ in range(800):
            yield torch.randn(8, generator=generator)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 8))
optimizer = torch.optim.RMSprop(model.parameters())
for _ in range(3):
    for x in DataLoader(Stream(), batch_size=16):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
print(loss.item())
