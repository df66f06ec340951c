"""Items are rows of arrays in memory, taken one by one."""

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self):
        draw = numpy.random.default_rng(0)
        self.x = draw.normal(size=(2048, 24)).astype(numpy.float32)
        self.y = [int(total > 0) for total in self.x.sum(1)]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return torch.from_numpy(self.x[index]), self.y[index]


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = DataLoader(Rows(), batch_size=128, shuffle=True)
for _ in range(100_000):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
