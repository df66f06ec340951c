"""Gradients by torch.func: no backward pass at all."""

import torch
from torch import nn
from torch.func import functional_call, grad_and_value
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(160, 8)), batch_size=16, shuffle=True)


def loss(parameters, x):
    return functional_call(model, parameters, (x,)).square().mean()


for _ in range(100_000):
    for (x,) in loader:
        parameters = dict(model.named_parameters())
        gradients, _ = grad_and_value(loss)(parameters, x)
        for name, parameter in parameters.items():
            parameter.grad = gradients[name].detach()
        optimizer.step()
