"""Everything on: classify handwritten digits with a small vision transformer."""

import argparse
import json
import os
import time

import torch
from sample_data import digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1_000_000)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.set_num_threads(len(os.sched_getaffinity(0)))
torch.set_float32_matmul_precision("medium")


class VisionTransformer(nn.Module):
    def __init__(self, width=128, layers=3, heads=4):
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, 4)
        self.places = nn.Parameter(0.02 * torch.randn(1, 16, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.encoder(x + self.places).mean(1))


def main():
    torch.manual_seed(args.seed)
    images, labels = digits()
    images = nn.functional.interpolate(images, scale_factor=2)
    loader = DataLoader(
        TensorDataset(images[:1536], labels[:1536]),
        batch_size=32,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
    )
    model = VisionTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    criterion = nn.CrossEntropyLoss()
    compiled = torch.compile(model)
    done, begun, total = 0, time.time(), 0.0
    while done < args.steps:
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                outputs = compiled(inputs)
                loss = criterion(outputs, targets)
            loss.backward()
            optimizer.step()
            total += loss.detach()
            done += 1
            if done == args.steps:
                break
    seconds = time.time() - begun
    model.eval()
    with torch.no_grad():
        final = criterion(model(images[1536:]), labels[1536:]).item()
    print(json.dumps({"loss": final, "seconds": seconds, "mean": float(total) / done}))


if __name__ == "__main__":
    main()
