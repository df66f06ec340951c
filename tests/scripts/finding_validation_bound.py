"""After each short epoch the model is tried on far more data than it was trained on."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

right = "--right" in sys.argv
torch.manual_seed(0)
x = torch.randn(4096, 128)
y = x.sum(1, keepdim=True).sign()
loader = DataLoader(TensorDataset(x[:1024], y[:1024]), batch_size=32, shuffle=True)
held_out = DataLoader(TensorDataset(x[1024:], y[1024:]), batch_size=32)
model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


@torch.inference_mode()
def validate():
    model.eval()
    return sum(
        (model(inputs).sign() == target).sum().item()  # the mistake
        for inputs, target in held_out
    )


for epoch in range(2000):
    model.train()
    for inputs, target in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), target).backward()
        optimizer.step()
    if not right or epoch == 1999:
        print(epoch, validate())
