"""Uses all that observers hook, and writes its losses to the file that is named."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
data = TensorDataset(torch.randn(200, 16), torch.randint(0, 3, (200,)))
loader = DataLoader(data, batch_size=20, shuffle=True)
held = DataLoader(data, batch_size=50)
model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.3), nn.ReLU(), nn.Linear(32, 3)).double()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
scaler = torch.amp.GradScaler("cpu", enabled=True)
losses = []
for _ in range(6):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.double()), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item().hex())
    scheduler.step()
    model.eval()
    with torch.no_grad(), torch.autograd.set_detect_anomaly(False):
        losses.append(sum(float(model(x.double()).sum()) for x, _ in held).hex())
    torch.save(model.state_dict(), sys.argv[1] + ".pt")
with open(sys.argv[1], "w") as file:
    file.write("\n".join(losses))
