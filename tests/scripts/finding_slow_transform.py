"""One transform of several takes nearly all of the time."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scale:
    def __call__(self, image):
        return image / 255


class Denoise:
    def __call__(self, image):  # the mistake
        end = time.perf_counter() + (0.0 if "--right" in sys.argv else 0.002)
        while time.perf_counter() < end:
            pass
        return image


class Images(Dataset):
    def __init__(self, *transforms):
        self.images = torch.randint(0, 255, (2000, 28 * 28))
        self.transforms = transforms

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index].float()
        for transform in self.transforms:
            image = transform(image)
        return image, index % 10


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(50):
    for x, y in DataLoader(Images(Scale(), Denoise()), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
