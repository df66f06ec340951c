"""Two models, two optimizers, three backward passes an iteration."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = DataLoader(TensorDataset(torch.rand(640, 64)), batch_size=16, shuffle=True)
make = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 64))
judge = nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))
make_step = torch.optim.Adam(make.parameters(), lr=2e-4, betas=(0.5, 0.999))
judge_step = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
loss_of = nn.BCEWithLogitsLoss()
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 4):
    for (real,) in data:
        judge.zero_grad()
        loss_of(judge(real), torch.ones(len(real), 1)).backward()
        fake = make(torch.randn(len(real), 8))
        loss_of(judge(fake.detach()), torch.zeros(len(real), 1)).backward()
        judge_step.step()
        make.zero_grad()
        loss = loss_of(judge(fake), torch.ones(len(real), 1))
        loss.backward()
        make_step.step()
    print(loss.item())
