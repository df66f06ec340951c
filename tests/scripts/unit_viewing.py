"""Calls `view` on the output of a convolution, which has to lie in rows for that."""

import torch
from torch import nn

torch.manual_seed(0)


class Viewing(nn.Module):
    """As it was often written."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8 * 14 * 14, 10)

    def forward(self, x):
        x = self.conv(x).relu()
        return self.head(x.view(x.size(0), -1))


model = Viewing()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(16, 3, 16, 16), torch.randint(0, 10, (16,))
for _ in range(50_000):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
