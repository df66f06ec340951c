"""A compiled model that prints and reads values between all of its layers."""

import torch
from torch import nn


class Chatty(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(12))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
            if x.sum().item() > 1e9:
                print("large")
        return x


torch.manual_seed(0)
model = torch.compile(Chatty(), backend="aot_eager")  # the mistake
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(8, 16), torch.randn(8, 16)
for _ in range(20_000):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
