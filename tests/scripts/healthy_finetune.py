"""A frozen backbone, OneCycle in every batch, a scaler that is off, clearing at the loop's end."""

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(768, 32)
y = x.sum(1, keepdim=True).sign()
loader = DataLoader(TensorDataset(x[:512], y[:512]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(x[512:], y[512:]), batch_size=64)
backbone = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2))
head = nn.Linear(64, 1)
backbone.requires_grad_(False)
model = nn.Sequential(backbone, head)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
epochs = 60
scheduler = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, max_lr=1e-2, total_steps=epochs * len(loader)
)
scaler = torch.amp.GradScaler("cpu", enabled=False)
history, best = [], torch.tensor(float("inf"))
for epoch in range(epochs):
    model.train()
    for inputs, target in loader:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(inputs), target)
        scaler.scale(loss).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        optimizer.zero_grad(set_to_none=False)
        history.append(loss.detach())
        best = torch.minimum(best, loss.detach())
    model.eval()
    with torch.inference_mode():
        correct = sum((model(a).sign() == b).sum().item() for a, b in held_out)
    print(epoch, torch.stack(history).mean().item(), best.item(), correct / 256)
    history.clear()
