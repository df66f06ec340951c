"""A compiled model that looks at values between all of its layers."""

import sys

import torch
from torch import nn


class Chatty(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        x = torch.tanh(self.a(x))
        if x.sum().item() > 1e9:
            print("large")
        x = torch.tanh(self.b(x))
        if x.sum().item() > 1e9:
            print("large")
        x = torch.tanh(self.c(x))
        if x.sum().item() > 1e9:
            print("large")
        return self.d(x)


torch.manual_seed(0)
model = Chatty()
if "--right" not in sys.argv:
    model = torch.compile(model, backend="aot_eager")  # the mistake
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(8, 16), torch.randn(8, 16)
for _ in range(20_000):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
