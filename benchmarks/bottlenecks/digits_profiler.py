"""As digits.py, watched by torch.profiler."""

import argparse
import json
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--slow", default="nothing")
parser.add_argument("--ms", type=float, default=12.0, help="an iteration")
parser.add_argument("--steps", type=int, default=1_000_000)
args = parser.parse_args()

torch.manual_seed(0)
BATCH = 32


def spend(phase, part=1.0):
    if args.slow == phase:
        end = time.thread_time() + part * args.ms / 1000
        while time.thread_time() < end:
            pass


class Digits(Dataset):
    def __init__(self):
        found = load_digits()
        self.images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
        self.labels = torch.tensor(found.target)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        spend("data", 1 / BATCH)
        return self.images[index], self.labels[index]


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        spend("backward")
        return gradient


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10),
        )  # fmt: skip

    def forward(self, x):
        spend("forward")
        return Backward.apply(self.layers(x))


class Adam(torch.optim.Adam):
    def step(self, closure=None):
        spend("optimizer")
        return super().step(closure)


def train():
    loader = DataLoader(Digits(), batch_size=BATCH, shuffle=True, drop_last=True)
    model = Model()
    criterion = nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), lr=1e-3)
    done, begun = 0, time.perf_counter()
    profiler = profile(
        activities=[ProfilerActivity.CPU], schedule=schedule(wait=5, warmup=5, active=50, repeat=1)
    )
    profiler.start()
    while done < args.steps:
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            spend("other")
            done += 1
            profiler.step()
            if done == args.steps:
                break
    profiler.stop()
    seconds = (time.perf_counter() - begun) / done
    print(json.dumps({"ms": 1000 * seconds}))
    rows = [[e.key, e.self_cpu_time_total, e.cpu_time_total] for e in profiler.key_averages()]
    print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=15))
    print(json.dumps(rows))


if __name__ == "__main__":
    train()
