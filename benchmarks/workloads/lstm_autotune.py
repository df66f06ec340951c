"""With pytorch-autotune: predict the next character with an LSTM."""

import argparse
import json
import time

import torch
from pytorch_autotune import autotune
from sample_data import text
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1_000_000)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

LENGTH = 48


class Language(nn.Module):
    def __init__(self, characters, width=128):
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, characters)

    def forward(self, x):
        return self.head(self.lstm(self.characters(x))[0])


def criterion(logits, y):
    return nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())


def main():
    torch.manual_seed(args.seed)
    data, characters = text()
    pieces = data[: (len(data) - 1) // LENGTH * LENGTH + 1]
    x, y = pieces[:-1].view(-1, LENGTH), pieces[1:].view(-1, LENGTH)
    loader = DataLoader(TensorDataset(x[:-128], y[:-128]), batch_size=16, shuffle=True)
    model = Language(characters)
    tuned = autotune(
        model, (x[:16], y[:16]), criterion, "adam", 2e-3, "fast", "cpu", cache=False, verbose=False
    )
    scaler = tuned.scaler or torch.amp.GradScaler("cpu", enabled=False)
    done, begun, total = 0, time.time(), 0.0
    while done < args.steps:
        for inputs, targets in loader:
            tuned.optimizer.zero_grad()
            with tuned.autocast():
                loss = criterion(tuned.model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.unscale_(tuned.optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(tuned.optimizer)
            scaler.update()
            total += loss.item()
            done += 1
            if done == args.steps:
                break
    seconds = time.time() - begun
    model.eval()
    with torch.no_grad():
        final = criterion(model(x[-128:]), y[-128:]).item()
    print(json.dumps({"loss": final, "seconds": seconds, "mean": total / done}))


if __name__ == "__main__":
    main()
