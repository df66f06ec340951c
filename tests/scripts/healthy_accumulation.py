"""Accumulates four batches; one schedule counts updates, the other batches, as it is made for."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(624, 32)
y = x.sum(1, keepdim=True).sign()
loader = DataLoader(TensorDataset(x[:500], y[:500]), batch_size=8, shuffle=True)
held_out = DataLoader(TensorDataset(x[500:], y[500:]), batch_size=31)
model = nn.Sequential(nn.Linear(32, 64), nn.Dropout(0.1), nn.ReLU(), nn.Linear(64, 1))
body = torch.optim.SGD(model[:3].parameters(), lr=1e-2, momentum=0.9)
head = torch.optim.AdamW(model[3].parameters(), lr=1e-3)
accumulate, epochs = 4, 50
by_updates = torch.optim.lr_scheduler.ExponentialLR(body, 0.999)
by_batches = torch.optim.lr_scheduler.CosineAnnealingLR(head, T_max=epochs * len(loader))
losses = []
for epoch in range(epochs):
    model.train()
    for number, (inputs, target) in enumerate(loader):
        loss = nn.functional.mse_loss(model(inputs), target) / accumulate
        loss.backward()
        losses.append(loss)  # at most four graphs, freed with the step
        if (number + 1) % accumulate == 0 or number + 1 == len(loader):
            for optimizer in (body, head):
                optimizer.step()
                for parameter in model.parameters():
                    parameter.grad = None if optimizer is head else parameter.grad
            by_updates.step()
            total = sum(one.item() for one in losses)
            losses = []
        by_batches.step()
    model.eval()
    for part in model.modules():  # Monte Carlo dropout: on purpose in training mode
        if isinstance(part, nn.Dropout):
            part.train()
    with torch.no_grad():
        votes = [torch.stack([model(a) for _ in range(4)]).mean(0) for a, _ in held_out]
    print(epoch, total, torch.cat(votes).std().item())
