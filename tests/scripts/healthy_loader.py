"""A loop with a loader in which nothing is the matter: epochs, validation, a save an epoch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(1280, 256), torch.randint(0, 10, (1280,)))
held = TensorDataset(torch.randn(256, 256), torch.randint(0, 10, (256,)))
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
loader, validation = DataLoader(data, 128, shuffle=True), DataLoader(held, 128)
for _ in range(1000):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    scheduler.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in validation)
    torch.save(model.state_dict(), "healthy.pt")
