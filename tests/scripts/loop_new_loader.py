"""The DataLoader is built anew in every epoch, and so is the one for validation."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(120, 12), torch.randint(0, 3, (120,)))
model = nn.Linear(12, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(40):
    for x, y in DataLoader(data, batch_size=10, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        for x, _y in DataLoader(data, batch_size=10):
            model(x)
print(loss.item())
