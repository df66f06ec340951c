"""Kinds of models with one training iteration each, for the tests of the proof."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hasten.instrument import patching
from hasten.instrument.proof import Recording
from hasten.instrument.seams.optimizer import OptimizerEvents, OptimizerHandle
from hasten.instrument.seams.root import Root


class NoEvents:
    """Events that nobody listens to."""

    def root_entered(self, root: Root, training: bool) -> None: ...

    def root_left(self, root: Root, training: bool) -> None: ...


_scripts: list[Script] = []


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Takes the seams off every script of a test; imported by the other tests of the proof."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    release()
    patching.restore_all()  # dynamo's limits, which compiling raises for good


def release() -> None:
    """Take the seams off every script so far."""
    while _scripts:
        for root in _scripts.pop().roots:
            root.uninstall()


@dataclass
class Script:
    """A training script: its models, its optimizers, and one iteration."""

    models: Sequence[nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    iterate: Callable[[], Any]
    roots: list[Root] = field(default_factory=list)
    handles: list[OptimizerHandle] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.roots = [Root(m, m.training, NoEvents()) for m in self.models]
        for root in self.roots:
            root.install()
        self.handles = [OptimizerHandle(o) for o in self.optimizers]
        _scripts.append(self)

    def record(self, warmup: int = 2, **options: Any) -> Recording:
        """Train for some iterations and record the one after them."""
        for _ in range(warmup):
            self.iterate()
        recording = Recording(self.roots, self.handles, **options)
        recording.start()
        events = OptimizerEvents(recording.before_step, lambda o: None)
        events.install()
        try:
            self.iterate()
        finally:
            events.uninstall()
            recording.finish()
        return recording

    def switch(self, setting: dict[str, Any]) -> None:
        """Put a setting into force, as the conductor does."""
        for root in self.roots:
            root.autocast(setting.get("amp-bf16"))
            root.compile(setting.get("compile"))
            root.channels_last(setting.get("channels-last", False))
        for handle in self.handles:
            handle.implementation(setting.get("fused-optimizer"))
            handle.compile(setting.get("compiled-optimizer", False))
            handle.realign()
        torch.set_num_threads(setting.get("threads", 1))


def simple(
    model: nn.Module,
    inputs: Callable[[], tuple[Any, ...]],
    loss: Callable[[Any], torch.Tensor],
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
) -> Script:
    """One model, one optimizer, a loss outside of the model."""
    steps = (optimizer or (lambda p: torch.optim.AdamW(p, lr=1e-3)))(model.parameters())

    def iterate() -> None:
        steps.zero_grad()
        loss(model(*inputs())).backward()
        steps.step()

    return Script([model], [steps], iterate)


def labels(count: int, classes: int) -> Callable[[Any], torch.Tensor]:
    """Cross entropy against random labels."""
    return lambda out: F.cross_entropy(out, torch.randint(classes, (count,)))


def mlp() -> Script:
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    return simple(
        nn.Sequential(model, nn.Linear(64, 5)), lambda: (torch.randn(32, 20),), labels(32, 5)
    )


def dropout_mlp() -> Script:
    layers = [nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 256), nn.GELU()]
    model = nn.Sequential(*layers, nn.Dropout(0.5), nn.LayerNorm(256), nn.Linear(256, 10))
    return simple(model, lambda: (torch.randn(64, 64),), labels(64, 10))


def cnn() -> Script:
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 4, 10))
    return simple(
        model,
        lambda: (torch.randn(32, 3, 16, 16),),
        labels(32, 10),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    )


def resnet() -> Script:
    from torchvision.models import resnet18

    return simple(
        resnet18(num_classes=10),
        lambda: (torch.randn(16, 3, 32, 32),),
        labels(16, 10),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=5e-4),
    )


class Block(nn.Module):
    """A transformer block, causal or not."""

    def __init__(self, width: int, causal: bool, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.drop, self.causal = nn.Dropout(dropout), causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        parts = self.qkv(self.norm1(x)).view(b, t, 3, 4, c // 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts, is_causal=self.causal)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(b, t, c)))
        return x + self.drop(self.mlp(self.norm2(x)))


class ByHand(nn.Module):
    """A causal block as minGPT writes it: softmax of a masked product, GELU from pow and tanh."""

    def __init__(self, width: int, causal: bool, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop, self.causal = nn.Dropout(dropout), causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, 4, c // 4).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) * (c // 4) ** -0.5
        hidden = torch.ones(t, t).tril() == 0
        shares = self.drop(F.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1))
        x = x + self.drop(self.out((shares @ v).transpose(1, 2).reshape(b, t, c)))
        h = self.up(self.norm2(x))
        h = 0.5 * h * (1.0 + torch.tanh(0.79788456 * (h + 0.044715 * torch.pow(h, 3.0))))
        return x + self.drop(self.down(h))


class Gpt(nn.Module):
    """A small GPT with tied weights that returns its loss, as nanoGPT does."""

    def __init__(self, tied: bool = True, dropout: float = 0.1, block: Any = Block) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(101, 64), nn.Embedding(32, 64)
        self.blocks = nn.Sequential(*[block(64, True, dropout) for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 101, bias=False)
        if tied:
            self.head.weight = self.tokens.weight
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        logits = self.head(self.norm(self.blocks(h)))
        return logits, F.cross_entropy(logits.flatten(0, 1), y.flatten())


def gpt(tied: bool = True, block: Any = Block) -> Script:
    return simple(
        Gpt(tied, block=block),
        lambda: (torch.randint(101, (8, 32)), torch.randint(101, (8, 32))),
        lambda out: out[1],
    )


class Vit(nn.Module):
    """A small vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.cls = nn.Conv2d(3, 48, 4, 4), nn.Parameter(torch.zeros(1, 1, 48))
        self.places = nn.Parameter(torch.randn(1, 65, 48) * 0.02)
        self.blocks = nn.Sequential(*[Block(48, False, 0.0) for _ in range(4)])
        self.norm, self.head = nn.LayerNorm(48), nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


def vit() -> Script:
    return simple(Vit(), lambda: (torch.randn(16, 3, 32, 32),), labels(16, 10))


class WordModel(nn.Module):
    """Embedding, two LSTM layers with dropout between, and a state handed on."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(83, 48), nn.LSTM(48, 64, 2, dropout=0.2)
        self.head = nn.Linear(64, 83)

    def forward(self, x: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        out, state = self.lstm(self.words(x), state)
        return self.head(out), state


def lstm() -> Script:
    model = WordModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    state: list[Any] = [(torch.zeros(2, 8, 64), torch.zeros(2, 8, 64))]

    def iterate() -> None:
        optimizer.zero_grad()
        out, new = model(torch.randint(83, (20, 8)), state[0])
        F.cross_entropy(out.flatten(0, 1), torch.randint(83, (160,))).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        state[0] = tuple(s.detach() for s in new)

    return Script([model], [optimizer], iterate)


class Vae(nn.Module):
    """The VAE of the PyTorch examples: random numbers inside, three outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(196, 128), nn.ReLU())
        self.mean, self.log = nn.Linear(128, 10), nn.Linear(128, 10)
        self.decode = nn.Sequential(nn.Linear(10, 128), nn.ReLU(), nn.Linear(128, 196))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        h = self.encode(x)
        mean, log = self.mean(h), self.log(h)
        std = torch.exp(0.5 * log)
        z = mean + std * torch.randn_like(std)
        return {"image": torch.sigmoid(self.decode(z)), "mean": mean, "log": log}


def vae() -> Script:
    model = Vae()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def iterate() -> None:
        optimizer.zero_grad()
        x = torch.rand(33, 196)
        out = model(x)
        kl = -0.5 * torch.sum(1 + out["log"] - out["mean"] ** 2 - out["log"].exp())
        (F.binary_cross_entropy(out["image"], x, reduction="sum") + kl).backward()
        optimizer.step()

    return Script([model], [optimizer], iterate)


def _generator() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((16, 32), (32, 16)):
        layers += [nn.ConvTranspose2d(before, after, 4, 2, 1, bias=False), nn.BatchNorm2d(after)]
        layers += [nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh())


def _discriminator() -> nn.Module:
    first = [nn.Conv2d(3, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 4, 2, 1)]
    rest = [nn.BatchNorm2d(32), nn.LeakyReLU(0.2), nn.Conv2d(32, 1, 4, 1, 0), nn.Flatten()]
    return nn.Sequential(*first, *rest)


def gan() -> Script:
    g, d = _generator(), _discriminator()
    steps_d = torch.optim.Adam(d.parameters(), lr=2e-4, betas=(0.5, 0.999))
    steps_g = torch.optim.Adam(g.parameters(), lr=2e-4, betas=(0.5, 0.999))

    def judge(images: torch.Tensor, real: float) -> torch.Tensor:
        out = d(images)
        return F.binary_cross_entropy_with_logits(out, torch.full_like(out, real))

    def iterate() -> None:
        steps_d.zero_grad()
        judge(torch.randn(16, 3, 16, 16), 1.0).backward()
        fake = g(torch.randn(16, 16, 2, 2))
        judge(fake.detach(), 0.0).backward()
        steps_d.step()
        steps_g.zero_grad()
        judge(fake, 1.0).backward()
        steps_g.step()

    return Script([g, d], [steps_d, steps_g], iterate)


class UNet(nn.Module):
    """Two levels, group norm, a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.low = self._level(3, 16), self._level(16, 32)
        self.up, self.merge = nn.ConvTranspose2d(32, 16, 2, 2), self._level(32, 16)
        self.out = nn.Conv2d(16, 2, 1)

    @staticmethod
    def _level(before: int, after: int) -> nn.Module:
        first = [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.SiLU()]
        return nn.Sequential(*first, nn.Conv2d(after, after, 3, padding=1), nn.ReLU(inplace=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = self.down(x)
        low = self.low(F.max_pool2d(skip, 2))
        return self.out(self.merge(torch.cat([skip, self.up(low)], 1)))


def unet() -> Script:
    return simple(
        UNet(),
        lambda: (torch.randn(4, 3, 24, 24),),
        lambda out: F.cross_entropy(out, torch.randint(2, (4, 24, 24))),
    )


class Bag(nn.Module):
    """Text classification with an embedding bag."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(500, 32, sparse=sparse), nn.Linear(32, 4)

    def forward(self, text: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.head(self.bag(text, offsets))


def bag(sparse: bool = False) -> Script:
    return simple(
        Bag(sparse),
        lambda: (torch.randint(500, (400,)), torch.arange(0, 400, 10)),
        labels(40, 4),
        lambda p: torch.optim.SGD(p, lr=1.0),
    )


KINDS: dict[str, Callable[[], Script]] = {
    "mlp": mlp,
    "cnn": cnn,
    "resnet": resnet,
    "vit": vit,
    "gpt": gpt,
    "untied": lambda: gpt(tied=False),
    "handmade": lambda: gpt(tied=False, block=ByHand),
    "lstm": lstm,
    "vae": vae,
    "gan": gan,
    "unet": unet,
    "bag": bag,
    "sparse-bag": lambda: bag(sparse=True),
    "dropout": dropout_mlp,
}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_one_iteration_of_every_kind_can_be_recorded(kind: str) -> None:
    torch.manual_seed(0)
    recording = KINDS[kind]().record(warmup=0)
    assert recording.complete is None
    assert recording.lacks("both") is None


@functools.cache
def lstm_runs_in_bf16() -> bool:
    """Whether oneDNN has an LSTM in bfloat16 for this CPU: without avx512 it has none."""
    lstm = torch.nn.LSTM(4, 4)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            lstm(torch.randn(3, 2, 4))[0].sum().backward()
    except RuntimeError:
        return False
    return True


def skip_without_lstm(reduced: bool) -> None:
    """Skip a test that needs an LSTM in bfloat16 where this CPU has none."""
    if reduced and not lstm_runs_in_bf16():
        pytest.skip("oneDNN has no LSTM in bfloat16 for this CPU")
