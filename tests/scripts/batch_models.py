"""Small models of ten kinds, on a loader of 8 samples a batch; the model is the first argument."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

ITEMS, CLASSES, WORDS = 2048, 10, 100


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
        self.lstm, self.head = nn.LSTM(32, 64, 2, batch_first=True), nn.Linear(64, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def layers(count: int, dropout: float = 0.0) -> nn.ModuleList:
    kind = nn.TransformerEncoderLayer
    return nn.ModuleList(kind(64, 4, 128, dropout, batch_first=True) for _ in range(count))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layers = nn.Embedding(WORDS, 64), layers(6)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class GPT(nn.Module):
    """Causal, with the weights of its first and last layer tied."""

    def __init__(self, length: int = 48) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(WORDS, 64), nn.Embedding(length, 64)
        self.layers, self.norm = layers(4, dropout=0.1), nn.LayerNorm(64)
        self.head = nn.Linear(64, WORDS, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("mask", torch.ones(length, length, dtype=torch.bool).triu(1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight
        for layer in self.layers:
            x = layer(x, src_mask=self.mask)
        return self.head(self.norm(x))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 4, 4)
        self.first = nn.Parameter(torch.zeros(1, 1, 64))
        self.places = nn.Parameter(torch.randn(1, 65, 64) * 0.02)
        self.layers, self.head = layers(4), nn.Linear(64, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 0])


def twice(inputs: int, outputs: int) -> nn.Sequential:
    parts = [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU()]
    return nn.Sequential(*parts, nn.Conv2d(outputs, outputs, 3, padding=1), nn.SiLU())


class UNet(nn.Module):
    """A class for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([twice(3, 16), twice(16, 32)])
        self.bottom, self.up = twice(32, 64), nn.ModuleList([twice(96, 32), twice(48, 16)])
        self.head = nn.Conv2d(16, CLASSES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for part in self.down:
            kept.append(part(x))
            x = F.max_pool2d(kept[-1], 2)
        x = self.bottom(x)
        for part in self.up:
            x = part(torch.cat([F.interpolate(x, scale_factor=2.0), kept.pop()], 1))
        return self.head(x)


class Bag(nn.Module):
    """Words of a text summed up, with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(20_000, 64, mode="mean", sparse=True)
        self.body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, CLASSES))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.body(self.words(tokens))


def perceptron() -> nn.Module:
    parts = [nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 512), nn.GELU()]
    return nn.Sequential(*parts, nn.Linear(512, CLASSES))


def residual() -> nn.Module:
    stem, blocks = nn.Conv2d(3, 16, 3, padding=1), [Block(16) for _ in range(5)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES)]
    return nn.Sequential(stem, *blocks, *head)


def convolutions() -> nn.Module:
    body = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU()]
    return nn.Sequential(
        *body, nn.Flatten(), nn.Linear(64 * 13 * 13, 128), nn.Dropout(), nn.Linear(128, CLASSES)
    )


def autoencoder() -> nn.Module:
    body = [nn.Conv2d(3, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU()]
    back = [nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.GroupNorm(4, 16), nn.ReLU()]
    return nn.Sequential(*body, *back, nn.ConvTranspose2d(16, 3, 4, 2, 1))


IMAGES = (3, 32, 32)
#: What makes the model, the shape of its samples, words that there are in them (0: numbers), and
#: the shape of its targets with their classes (0: what the model was given).
MODELS = {
    "perceptron": (perceptron, (256,), 0, (), CLASSES),
    "residual": (residual, IMAGES, 0, (), CLASSES),
    "convolutions": (convolutions, IMAGES, 0, (), CLASSES),
    "autoencoder": (autoencoder, IMAGES, 0, (), 0),
    "recurrent": (Recurrent, (40, 32), 0, (), CLASSES),
    "transformer": (Transformer, (32,), WORDS, (), CLASSES),
    "gpt": (GPT, (48,), WORDS, (48,), WORDS),
    "vit": (ViT, IMAGES, 0, (), CLASSES),
    "unet": (UNet, IMAGES, 0, (32, 32), CLASSES),
    "bag": (Bag, (200,), 20_000, (), CLASSES),
}
make, shape, words, targets, classes = MODELS[sys.argv[1]]


def loss_of(outputs: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if classes == 0:
        return F.mse_loss(outputs, inputs)
    if labels.dim() == 2:  # a word after each word
        return F.cross_entropy(outputs.flatten(0, 1), labels.flatten())
    return F.cross_entropy(outputs, labels)


torch.manual_seed(0)
samples = torch.randint(words, (ITEMS, *shape)) if words else torch.randn(ITEMS, *shape)
labels = torch.randint(classes or 1, (ITEMS, *targets), dtype=torch.int64)
loader = DataLoader(TensorDataset(samples, labels), batch_size=8, shuffle=True)
model = make()
kind = torch.optim.SGD if sys.argv[1] == "bag" else torch.optim.AdamW  # which knows no sparse ones
optimizer = kind(model.parameters(), lr=1e-3)
for _epoch in range(50):
    for batch, target in loader:
        optimizer.zero_grad()
        loss_of(model(batch), batch, target).backward()
        optimizer.step()
