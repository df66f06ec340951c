"""Trains on JPEG files with a random flip; prints what would show any difference.

Usage: pictures.py FOLDER EPOCHS WORKERS PERSISTENT
"""

import hashlib
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

folder, epochs, workers, persistent = sys.argv[1], *map(int, sys.argv[2:5])


def main() -> None:
    torch.manual_seed(0)
    steps = [transforms.Resize((24, 24)), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    dataset = ImageFolder(folder, transforms.Compose(steps))
    loader = DataLoader(
        dataset,
        batch_size=4,
        shuffle=True,
        num_workers=workers,
        persistent_workers=bool(persistent),
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 24 * 24, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    seen = hashlib.sha256()
    for _ in range(epochs):
        for images, labels in loader:
            seen.update(images.numpy().tobytes() + labels.numpy().tobytes())
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    for parameter in model.parameters():
        seen.update(parameter.detach().numpy().tobytes())
    print(seen.hexdigest(), torch.rand(1).item())


if __name__ == "__main__":
    main()
