"""`iter(loader)` with `next`, a custom batch_sampler and collate_fn, dict batches."""

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


class Pairs(Dataset):
    def __len__(self):
        return 300

    def __getitem__(self, index):
        return {"x": torch.full((16,), float(index % 7)), "meta": {"y": index % 3}}


def collate(items):
    x = torch.stack([item["x"] for item in items])
    return {"x": x, "meta": {"y": torch.tensor([item["meta"]["y"] for item in items])}}


torch.manual_seed(0)
generator = torch.Generator().manual_seed(5)
data = Pairs()
sampler = BatchSampler(RandomSampler(data, generator=generator), 10, drop_last=False)
loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate)
model = nn.Linear(16, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = iter(loader)
for _ in range(90):
    try:
        batch = next(batches)
    except StopIteration:
        batches = iter(loader)
        batch = next(batches)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(batch["x"]), batch["meta"]["y"])
    loss.backward()
    optimizer.step()
print(loss.item())
