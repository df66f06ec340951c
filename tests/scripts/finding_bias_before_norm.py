"""Wide layers with few inputs have biases, which the batch norms behind them take away."""

import sys

import torch
from torch import nn

biased = "--right" not in sys.argv
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1024, bias=biased)
        self.norm = nn.BatchNorm1d(1024)

    def forward(self, x):
        hidden = self.layer(x)  # the mistake
        return self.norm(hidden).view(len(x), 4, 256).mean(-1)


model = nn.Sequential(Block(), Block(), Block(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(1024, 4)
y = x.sum(1, keepdim=True).sign()
for _ in range(20_000):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
