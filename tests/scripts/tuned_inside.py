"""Trains with slow items, dropout and shuffling; prints a hash of the weights at the end."""

import argparse
import hashlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    """Items that take a while and never differ."""

    def __len__(self):
        return 512

    def __getitem__(self, index):
        item = torch.arange(48.0) * (index % 7)
        for _ in range(40):
            item = torch.sin(item) + 0.01 * index
        return item, index % 4


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=30)
    epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    loader = DataLoader(Slow(), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        seen = []
        for x, y in loader:
            optimizer.zero_grad(set_to_none=False)
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            seen.append(len(y))
        assert sum(seen) == 512
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    print("weights", digest.hexdigest(), "random", torch.rand(1).item())


if __name__ == "__main__":
    main()
