"""Four batches make a step, but the scheduler steps at each of them: it is over in a quarter."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

right = "--right" in sys.argv
torch.manual_seed(0)
x = torch.randn(512, 32)
y = x.sum(1, keepdim=True).sign()
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
accumulate, epochs = 4, 50
updates = epochs * len(loader) // accumulate
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=updates)
for epoch in range(epochs):
    for number, (inputs, target) in enumerate(loader):
        loss = nn.functional.mse_loss(model(inputs), target) / accumulate
        loss.backward()
        last = (number + 1) % accumulate == 0
        if last:
            optimizer.step()
            optimizer.zero_grad()
        if last or not right:
            scheduler.step()  # the mistake
    print(epoch, loss.item(), scheduler.get_last_lr())
