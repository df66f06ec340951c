"""Fills gradients with zeros, and leaves a layer out of every third iteration."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.ModuleDict({"first": nn.Linear(32, 64), "often": nn.Linear(64, 64)})
model["last"] = nn.Linear(64, 4)


class Whole(nn.Module):
    """Depth that varies."""

    def __init__(self):
        super().__init__()
        self.layers = model

    def forward(self, x, deep):
        x = self.layers["first"](x).relu()
        return self.layers["last"](self.layers["often"](x).relu() if deep else x)


whole = Whole()
optimizer = torch.optim.SGD(whole.parameters(), lr=0.01, momentum=0.9, weight_decay=0.01)
x, y = torch.randn(16, 32), torch.randint(0, 4, (16,))
for index in range(50_000):
    optimizer.zero_grad(set_to_none=False)
    nn.functional.cross_entropy(whole(x, index % 3 > 0), y).backward()
    optimizer.step()
