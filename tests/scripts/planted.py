"""Spends a known time in each phase of an iteration: the milliseconds below."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PLANTED = {"data": 6.0, "forward": 9.0, "backward": 12.0, "optimizer": 4.0, "other": 5.0}


def spend(phase):
    end = time.perf_counter() + PLANTED[phase] / 1000
    while time.perf_counter() < end:
        pass


class Items(Dataset):
    def __len__(self):
        return 40

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


def main():
    model = Model(4, 1)
    optimizer = Optimizer(model.parameters(), lr=1e-3)
    loader = DataLoader(Items(), batch_size=1)
    for _ in range(1000):
        for x in loader:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            spend("other")


main()
