"""The model runs inside a function that the script compiles (eager backend: it starts quickly)."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(640, 16), torch.randn(640, 1)), batch_size=16)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters())


@torch.compile(backend="eager")
def loss_of(x, y):
    return nn.functional.mse_loss(model(x), y)


for _ in range(3):
    for x, y in loader:
        loss = loss_of(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(loss.item())
