"""Four batches of sentences make a step, each with the mean over its own words."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

right = "--right" in sys.argv
torch.manual_seed(0)
tokens = torch.randint(1, 50, (512, 24))
tokens *= torch.arange(24) < torch.randint(2, 25, (512, 1))  # 0 is padding
loader = DataLoader(TensorDataset(tokens), batch_size=2, shuffle=True)
model = nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 50))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
accumulate, window = 4, []
for _epoch in range(100):
    for (batch,) in loader:
        window.append(batch)
        if not right:
            logits = model(batch[:, :-1]).transpose(1, 2)
            loss = nn.functional.cross_entropy(logits, batch[:, 1:], ignore_index=0)
            (loss / accumulate).backward()  # the mistake
        if len(window) == accumulate:
            words = sum((one[:, 1:] != 0).sum() for one in window)
            for one in window if right else ():
                logits = model(one[:, :-1]).transpose(1, 2)
                own = (one[:, 1:] != 0).sum()
                loss = nn.functional.cross_entropy(logits, one[:, 1:], ignore_index=0)
                (loss * (own / words)).backward()
            optimizer.step()
            optimizer.zero_grad()
            window = []
