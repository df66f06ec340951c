"""Batches cut out of a memory-mapped array, no DataLoader; loss inside the model; accumulation."""

import os
import tempfile

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
path = os.path.join(tempfile.mkdtemp(), "tokens.bin")
np.random.default_rng(0).integers(0, 50, 20_000, dtype=np.uint16).tofile(path)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.mix = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.head = nn.Linear(32, 50)

    def forward(self, tokens, targets):
        logits = self.head(self.mix(self.embed(tokens)))
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch():
    data = np.memmap(path, dtype=np.uint16, mode="r")
    starts = torch.randint(len(data) - 33, (8,))
    cut = [torch.from_numpy(data[i : i + 33].astype(np.int64)) for i in starts]
    both = torch.stack(cut)
    return both[:, :-1], both[:, 1:]


model = Small()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(100):
    for _micro in range(2):
        logits, loss = model(*batch())
        (loss / 2).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
print(loss.item())
