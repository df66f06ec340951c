"""A convolutional network on the CPU."""

import torch
from torch import nn

torch.manual_seed(0)
layers, last = [], 3
for width in (32, 64, 64, 128):
    layers += [nn.Conv2d(last, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    layers += [nn.MaxPool2d(2)]
    last = width
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
x, y = torch.randn(16, 3, 64, 64), torch.randint(0, 10, (16,))
for _ in range(20_000):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
