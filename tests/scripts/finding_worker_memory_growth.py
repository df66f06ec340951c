"""A list of many Python strings, which every worker copies while it reads."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Names(Dataset):
    def __init__(self):
        self.names = [f"file number {number}" for number in range(4_000_000)]

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return torch.full((8,), len(self.names[index]) / 100)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(Names(), batch_size=512, num_workers=2)  # the mistake
    for _ in range(20):
        for x in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
