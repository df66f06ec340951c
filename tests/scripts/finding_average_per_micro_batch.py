"""Four batches make a step, and the gradients of each are averaged over processes (of one)."""

import sys
from contextlib import nullcontext

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

right = "--right" in sys.argv
torch.manual_seed(0)
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
x = torch.randn(512, 1500)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True).sign()), batch_size=2, shuffle=True)
layers = nn.Sequential(nn.Linear(1500, 3000), nn.ReLU(), nn.Linear(3000, 1))
model = DistributedDataParallel(layers)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
accumulate = 4
for epoch in range(100):
    for number, (inputs, target) in enumerate(loader):
        last = (number + 1) % accumulate == 0
        with model.no_sync() if right and not last else nullcontext():
            loss = nn.functional.mse_loss(model(inputs), target) / accumulate
            loss.backward()  # the mistake
        if last:
            optimizer.step()
            optimizer.zero_grad()
    print(epoch, loss.item())
