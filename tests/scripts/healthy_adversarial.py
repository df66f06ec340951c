"""Adversarial training: passes for the inputs' gradients, cleared unused, also in validation."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(768, 32)
y = x.sum(1, keepdim=True).sign()
loader = DataLoader(TensorDataset(x[:512], y[:512]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(x[512:], y[512:]), batch_size=64)
model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)


def attack(inputs, target):
    inputs = inputs.clone().requires_grad_(True)
    nn.functional.mse_loss(model(inputs), target).backward()
    optimizer.zero_grad()
    return (inputs + 0.05 * inputs.grad.sign()).detach()


def robust_accuracy():
    correct = 0
    for inputs, target in held_out:
        moved = inputs.clone().requires_grad_(True)
        loss = nn.functional.mse_loss(model(moved), target)
        (slope,) = torch.autograd.grad(loss, moved)
        with torch.no_grad():
            correct += (model(moved + 0.05 * slope.sign()).sign() == target).sum().item()
    return correct / 256


for epoch in range(60):
    model.train()
    for inputs, target in loader:
        loss = nn.functional.mse_loss(model(attack(inputs, target)), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scheduler.step()
    model.eval()
    print(epoch, loss.item(), robust_accuracy())
