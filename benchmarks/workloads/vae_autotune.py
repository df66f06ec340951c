"""With pytorch-autotune: learn to draw handwritten digits with a variational autoencoder."""

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


class Autoencoder(nn.Module):
    def __init__(self, pixels=1024, width=512, code=16):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(pixels, width), nn.ReLU())
        self.mean, self.spread = nn.Linear(width, code), nn.Linear(width, code)
        self.decoder = nn.Sequential(nn.Linear(code, width), nn.ReLU(), nn.Linear(width, pixels))

    def forward(self, x):
        hidden = self.encoder(x)
        mean, spread = self.mean(hidden), self.spread(hidden)
        code = mean + torch.exp(0.5 * spread) * torch.randn_like(spread)
        return self.decoder(code), mean, spread


def criterion(outputs, x):
    drawn, mean, spread = outputs
    drawing = nn.functional.binary_cross_entropy_with_logits(drawn, x.flatten(1), reduction="sum")
    return (drawing - 0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())) / len(x)


def main():
    torch.manual_seed(args.seed)
    images = nn.functional.interpolate(digits()[0], scale_factor=4)
    loader = DataLoader(TensorDataset(images[:1536]), batch_size=64, shuffle=True)
    model = Autoencoder()
    tuned = autotune(
        model,
        (images[:64], images[:64]),
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
        for (inputs,) in loader:
            loss = tuned.step(inputs, inputs)
            total += loss.item()
            done += 1
            if done == args.steps:
                break
    seconds = time.time() - begun
    model.eval()
    with torch.no_grad():
        torch.manual_seed(0)
        final = criterion(model(images[1536:]), images[1536:]).item()
    print(json.dumps({"loss": final, "seconds": seconds, "mean": total / done}))


if __name__ == "__main__":
    main()
