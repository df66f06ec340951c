"""Sentences of very different lengths in one batch: most of it is padding."""

import sys

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

right = "--right" in sys.argv
torch.manual_seed(0)
lengths = torch.randint(4, 100, (1024,)).tolist()
sentences = [torch.randint(1, 200, (length,)) for length in lengths]
labels = [float(sentence[0] > 100) for sentence in sentences]
data = list(zip(sentences, labels, strict=True))


def collate(items):  # the mistake
    ids, targets = zip(*items, strict=True)
    return pad_sequence(ids, batch_first=True), torch.tensor(targets)


def batches():
    order = sorted(range(1024), key=lengths.__getitem__)
    return [order[start : start + 32] for start in range(0, 1024, 32)]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(200, 128, padding_idx=0)
        self.layers = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128))
        self.head = nn.Linear(128, 1)

    def forward(self, ids):
        real = (ids != 0).unsqueeze(-1)
        hidden = self.layers(self.embedding(ids)) * real
        return self.head(hidden.sum(1) / real.sum(1)).squeeze(-1)


if right:
    order = [batch for _ in range(50) for batch in batches()]
    permuted = [order[place] for place in torch.randperm(len(order))]
    loader = DataLoader(data, batch_sampler=permuted, collate_fn=collate)
else:
    loader = DataLoader(data, batch_size=32, shuffle=True, collate_fn=collate)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2 if right else 100):
    for ids, target in loader:
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(ids), target).backward()
        optimizer.step()
