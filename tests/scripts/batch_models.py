"""Small models of many kinds, on a loader of 8 samples a batch; the model is the first argument."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        body = [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        self.body = nn.Sequential(*body, nn.Conv2d(width, width, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.body(x))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(32, 64, 2, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 64)
        layer = nn.TransformerEncoderLayer
        self.layers = nn.ModuleList(layer(64, 4, 128, 0.0, batch_first=True) for _ in range(6))
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 512), nn.GELU(), nn.Linear(512, 10)
    )


def residual() -> nn.Module:
    stem, blocks = nn.Conv2d(3, 16, 3, padding=1), [Block(16) for _ in range(5)]
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def convolutions() -> nn.Module:
    body = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU()]
    return nn.Sequential(
        *body, nn.Flatten(), nn.Linear(64 * 13 * 13, 128), nn.Dropout(), nn.Linear(128, 10)
    )


def autoencoder() -> nn.Module:
    body = [
        nn.Conv2d(3, 16, 4, 2, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 16, 4, 2, 1),
        nn.GroupNorm(4, 16),
    ]
    return nn.Sequential(*body, nn.Conv2d(16, 3, 3), nn.Flatten(), nn.Linear(2700, 10))


MODELS = {
    "perceptron": (perceptron, (256,)),
    "residual": (residual, (3, 32, 32)),
    "convolutions": (convolutions, (3, 32, 32)),
    "autoencoder": (autoencoder, (3, 32, 32)),
    "recurrent": (Recurrent, (40, 32)),
    "transformer": (Transformer, (32,)),
}
make, shape = MODELS[sys.argv[1]]
torch.manual_seed(0)
samples = (
    torch.randn(2048, *shape)
    if sys.argv[1] != "transformer"
    else torch.randint(100, (2048, *shape))
)
loader = DataLoader(TensorDataset(samples, torch.randint(10, (2048,))), batch_size=8, shuffle=True)
model = make()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _epoch in range(50):
    for batch, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), labels).backward()
        optimizer.step()
