"""Mixed precision by NVIDIA's apex, which torch.amp has replaced."""

import pathlib
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(pathlib.Path(__file__).parent / "fake_apex"))
try:
    from apex import amp
except ImportError:
    amp = None
if "--right" in sys.argv:  # it can be imported, but isn't used
    amp = None
torch.manual_seed(0)
x = torch.randn(512, 32)
y = x.sum(1, keepdim=True).sign()
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if amp is not None:
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
for epoch in range(60):
    for inputs, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), target)
        if amp is not None:
            with amp.scale_loss(loss, optimizer) as scaled:  # the mistake
                scaled.backward()
        else:
            loss.backward()
        optimizer.step()
    print(epoch, loss.item())
