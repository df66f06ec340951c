"""nn.MultiheadAttention makes weights for each pair of positions, and they are dropped."""

import sys

import torch
from torch import nn

needed = "--right" not in sys.argv
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, width=64, heads=2):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x):
        x = self.norm(x)
        y, _ = self.attention(x, x, x, need_weights=needed)  # the mistake
        return x + y


model = nn.Sequential(nn.Linear(16, 64), Block(), Block(), nn.Linear(64, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x = torch.randn(2, 512, 16)
for _ in range(20_000):
    loss = nn.functional.mse_loss(model(x), x.flip(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
