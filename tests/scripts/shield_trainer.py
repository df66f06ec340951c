"""Trains, and writes in every way that training scripts do."""

import atexit
import os
import subprocess
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(512, 32), torch.randint(0, 4, (512,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters())
checkpoints = Path("checkpoints")


def at_exit():
    Path("finished").write_text("the end")
    Path("train.log").unlink()


atexit.register(at_exit)
try:
    for epoch in range(10_000):
        for step, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if step % 8 == 0:
                with open("train.log", "a") as log:
                    print(epoch, step, loss.item(), file=log)
        torch.save(model.state_dict(), checkpoints / "new.tmp")
        os.replace(checkpoints / "new.tmp", checkpoints / f"{100 + epoch}.pt")
        assert torch.load(checkpoints / f"{100 + epoch}.pt")
        subprocess.run(["cp", str(checkpoints / f"{100 + epoch}.pt"), "best.pt"], check=True)
        assert Path("best.pt").stat().st_size > 1000
        for old in sorted(checkpoints.glob("*.pt"))[:-2]:
            old.unlink()
finally:
    Path("victim.txt").write_text("overwritten")
