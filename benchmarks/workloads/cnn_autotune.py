"""With pytorch-autotune: classify handwritten digits with a small convolutional network."""

import argparse
import json
import time

import torch
from pytorch_autotune import autotune
from sample_data import digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1_000_000)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


def main():
    torch.manual_seed(args.seed)
    images, labels = digits()
    images = nn.functional.interpolate(images, scale_factor=2)
    loader = DataLoader(TensorDataset(images[:1536], labels[:1536]), batch_size=32, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip
    criterion = nn.CrossEntropyLoss()
    tuned = autotune(
        model,
        (images[:32], labels[:32]),
        criterion,
        "adam",
        1e-3,
        "fast",
        "cpu",
        cache=False,
        verbose=False,
    )
    done, begun, total = 0, time.time(), 0.0
    while done < args.steps:
        for inputs, targets in loader:
            loss = tuned.step(inputs, targets)
            total += loss.item()
            done += 1
            if done == args.steps:
                break
    seconds = time.time() - begun
    model.eval()
    with torch.no_grad():
        final = criterion(model(images[1536:]), labels[1536:]).item()
    print(json.dumps({"loss": final, "seconds": seconds, "mean": total / done}))


if __name__ == "__main__":
    main()
