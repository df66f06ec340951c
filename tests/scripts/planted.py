"""Spends drawn amounts of processor time in each phase of an iteration, and counts them itself.

`rows` holds the milliseconds that each iteration has really spent, by phase.
"""

import random
import time
from collections import Counter

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MEAN = 6.0  # milliseconds; from nothing to twice that
PHASES = ("data", "forward", "backward", "optimizer", "other")
drawn = random.Random(1)
spent = Counter()


def spend(phase):
    begun = now = time.process_time()
    end = begun + drawn.uniform(0.0, 2 * MEAN) / 1000
    while now < end:
        now = time.process_time()
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
