"""Spends a known time in each phase of an iteration, and writes what it really took.

Argument: the file to which the milliseconds of the first 70 iterations go, as JSON.
"""

import json
import sys
import time
from collections import Counter

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PLANTED = {"data": 6.0, "forward": 9.0, "backward": 12.0, "optimizer": 4.0, "other": 5.0}
spent = Counter()


def spend(phase):
    begun = now = time.perf_counter()
    while now < begun + PLANTED[phase] / 1000:
        now = time.perf_counter()
    spent[phase] += 1000 * (now - begun)


class Items(Dataset):
    def __len__(self):
        return 2000

    def __getitem__(self, index):
        spend("data")
        return torch.ones(4)


class Spend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        spend("forward")
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        spend("backward")
        return gradient


class Model(nn.Linear):
    def forward(self, x):
        return Spend.apply(super().forward(x))


class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        spend("optimizer")
        super().step(closure)


model = Model(4, 1)
optimizer = Optimizer(model.parameters(), lr=1e-3)
rows = []
for x in DataLoader(Items(), batch_size=1):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    spend("other")
    rows.append(dict(spent))
    spent.clear()
    if len(rows) == 70 and len(sys.argv) > 1:
        with open(sys.argv[1], "w") as file:
            json.dump(rows, file)
