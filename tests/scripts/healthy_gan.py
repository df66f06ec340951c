"""Five critic steps for one generator step; each loss leaves gradients in the other's model."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.rand(640, 32)), batch_size=16, shuffle=True)
make = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))
judge = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
make_step = torch.optim.RMSprop(make.parameters(), lr=5e-5)
judge_step = torch.optim.RMSprop(judge.parameters(), lr=5e-5)
schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.99) for o in (make_step, judge_step)]
for epoch in range(60):
    for number, (real,) in enumerate(loader):
        judge_step.zero_grad()
        fake = make(torch.randn(len(real), 8))
        (judge(fake).mean() - judge(real).mean()).backward()  # the generator gets some, too
        judge_step.step()
        with torch.no_grad():
            for parameter in judge.parameters():
                parameter.clamp_(-0.01, 0.01)
        if number % 5 == 4:
            make_step.zero_grad()
            loss = -judge(make(torch.randn(len(real), 8))).mean()
            loss.backward()
            make_step.step()
    for schedule in schedules:
        schedule.step()
    with torch.no_grad():
        print(epoch, loss.item(), make(torch.randn(64, 8)).std().item())
