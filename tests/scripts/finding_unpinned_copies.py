"""Large batches go to the accelerator from memory that is not pinned."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.accelerator.current_accelerator()
torch.manual_seed(0)
model = nn.Linear(512, 10).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(65536, 512))
for _ in range(1000):
    for (batch,) in DataLoader(data, batch_size=16384):
        x = batch.to(device)  # the mistake
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
