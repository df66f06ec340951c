"""Each item needs real work, and the loader has no workers."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.randn(64, 64, generator=generator)
        for _ in range(6):  # work on an item, as decoding would be
            image = torch.linalg.solve(torch.eye(64) * 9 + image, image)
        return image.flatten(), index % 10


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4096, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    workers = 2 if "--right" in sys.argv else 0
    loader = DataLoader(Images(), 16, shuffle=True, num_workers=workers)  # the mistake
    for _ in range(50):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
