"""Loaders of many kinds with 8 samples a batch; the kind is the first argument.

Of "crowded", batches of more than 32 samples don't fit.
"""

import sys

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

kind = sys.argv[1]


class Texts(Dataset):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        draw = torch.Generator().manual_seed(index)
        return torch.randint(1, 50, (3 + index % 11,), generator=draw)


class ByLength(BatchSampler):
    """Batches of alike lengths: a class of the script's own."""


def ragged(texts: list[torch.Tensor]) -> list[torch.Tensor]:
    return texts


def padded(texts: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    tokens = nn.utils.rnn.pad_sequence(texts, batch_first=True)
    return {"tokens": tokens, "lengths": torch.tensor([len(text) for text in texts])}


texts = Texts()
batches = BatchSampler(RandomSampler(texts), 8, drop_last=True)
loader = {
    "ragged": lambda: DataLoader(texts, 8, shuffle=True, collate_fn=ragged),
    "dict": lambda: DataLoader(texts, 8, shuffle=True, collate_fn=padded),
    "drop-last": lambda: DataLoader(texts, 8, shuffle=True, collate_fn=padded, drop_last=True),
    "sampler": lambda: DataLoader(texts, 8, sampler=RandomSampler(texts), collate_fn=padded),
    "batch-sampler": lambda: DataLoader(texts, batch_sampler=batches, collate_fn=padded),
    "crowded": lambda: DataLoader(texts, 8, shuffle=True, collate_fn=padded),
    "own": lambda: DataLoader(
        texts, batch_sampler=ByLength(RandomSampler(texts), 8, False), collate_fn=padded
    ),
}[kind]()
table, head = nn.Embedding(50, 16, padding_idx=0), nn.Linear(16, 2)
model = nn.ModuleDict({"table": table, "head": head})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(60):
    seen = 0
    for batch in loader:
        if isinstance(batch, dict):
            count = len(batch["tokens"])
            means = table(batch["tokens"]).sum(1) / batch["lengths"][:, None]
        else:
            count = len(batch)
            means = torch.stack([table(text).mean(0) for text in batch])
        if kind == "crowded" and count > 32:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to ...")
        labels = torch.arange(count) % 2
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(means), labels).backward()
        optimizer.step()
        seen += 1
    assert seen == len(loader)
    print(epoch, len(loader))
