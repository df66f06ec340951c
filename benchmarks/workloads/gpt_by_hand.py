"""Everything on: predict the next character with a small GPT."""

import argparse
import json
import os
import time

import torch
from sample_data import text
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1_000_000)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.set_num_threads(len(os.sched_getaffinity(0)))
torch.set_float32_matmul_precision("medium")

LENGTH, BATCH = 64, 8


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mix = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.attend(self.before(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(found.transpose(1, 2).reshape(batch, length, width))
        return x + self.mix(self.after(x))


class Gpt(nn.Module):
    def __init__(self, characters, width=128, layers=3, heads=4):
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.places = nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters)

    def forward(self, x):
        places = torch.arange(x.shape[1])
        return self.head(self.norm(self.blocks(self.characters(x) + self.places(places))))


def draw(data, count=BATCH):
    starts = torch.randint(len(data) - LENGTH - 1, (count,))
    x = torch.stack([data[start : start + LENGTH] for start in starts])
    y = torch.stack([data[start + 1 : start + LENGTH + 1] for start in starts])
    return x, y


def criterion(logits, y):
    return nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())


def main():
    torch.manual_seed(args.seed)
    data, characters = text()
    held_out, data = data[-8192:], data[:-8192]
    model = Gpt(characters)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    compiled = torch.compile(model)
    begun, total = time.time(), 0.0
    for _ in range(args.steps):
        x, y = draw(data)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = criterion(compiled(x), y)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    seconds = time.time() - begun
    model.eval()
    with torch.no_grad():
        torch.manual_seed(0)
        x, y = draw(held_out, 128)
        final = criterion(model(x), y).item()
    print(json.dumps({"loss": final, "seconds": seconds, "mean": float(total) / args.steps}))


if __name__ == "__main__":
    main()
