"""With pytorch-autotune: classify JPEG photographs with a small residual network."""

import argparse
import io
import json
import time

import numpy as np
import torch
from PIL import Image
from pytorch_autotune import autotune
from sample_data import jpegs
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1_000_000)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


class Photographs(Dataset):
    def __init__(self, files, labels):
        self.files, self.labels = files, labels

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        image = Image.open(io.BytesIO(self.files[index])).convert("RGB").resize((48, 48))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255)
        return (pixels - 0.45) / 0.25, self.labels[index]


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.short = nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x):
        return torch.relu(self.body(x) + self.short(x))


def main():
    torch.manual_seed(args.seed)
    files, labels = jpegs(640)
    train, held_out = Photographs(files[:512], labels[:512]), Photographs(files[512:], labels[512:])
    loader = DataLoader(train, batch_size=16, shuffle=True)
    model = nn.Sequential(
        Block(3, 16, 2), Block(16, 32, 2), Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 8),
    )  # fmt: skip
    criterion = nn.CrossEntropyLoss()
    tuned = autotune(
        model,
        next(iter(loader)),
        criterion,
        "adamw",
        1e-3,
        "fast",
        "cpu",
        cache=False,
        verbose=False,
    )
    done, begun, total = 0, time.time(), 0.0
    while done < args.steps:
        for images, targets in loader:
            loss = tuned.step(images, targets)
            total += loss.item()
            done += 1
            if done == args.steps:
                break
    seconds = time.time() - begun
    model.eval()
    with torch.no_grad():
        images = torch.stack([item[0] for item in held_out])
        final = criterion(model(images), torch.tensor(held_out.labels)).item()
    print(json.dumps({"loss": final, "seconds": seconds, "mean": total / done}))


if __name__ == "__main__":
    main()
