"""An encoder that is meant to learn, but its output is detached on the way."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

right = "--right" in sys.argv
torch.manual_seed(0)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(32, 64)
        self.head = nn.Linear(64, 1)

    def forward(self, x):
        features = self.encoder(x).relu()  # the mistake
        if not right:
            features = features.detach()
        return self.head(features)


x = torch.randn(512, 32)
y = x.sum(1, keepdim=True).sign()
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(60):
    for inputs, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), target)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
