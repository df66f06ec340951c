"""Small training loops under the real seams, for the tests of single optimisations."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hasten.instrument.detection import Loop
from hasten.instrument.loop import LoopSeams
from hasten.instrument.proof import Recording, judge
from hasten.instrument.seams.optimizer import OptimizerEvents, OptimizerHandle
from hasten.optimisations import find
from hasten.records import Proof, Setting

Make = Callable[[], "Training"]


class NoEvents:
    """Events that nobody listens to."""

    def root_entered(self, root: Any, training: bool) -> None: ...

    def root_left(self, root: Any, training: bool) -> None: ...


class Training:
    """A script: models, optimizers, and `step(index)`, one iteration that depends on its number."""

    models: Sequence[nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]

    def step(self, index: int) -> Any:
        """One iteration."""

    def weights(self) -> list[torch.Tensor]:
        """Copies of all parameters, buffers and optimizer state, in rows."""
        held = [t for m in self.models for t in (*m.parameters(), *m.buffers())]
        for optimizer in self.optimizers:
            for owned in (p for g in optimizer.param_groups for p in g["params"]):
                held += [v for _, v in sorted(optimizer.state.get(owned, {}).items()) if _is(v)]
        return [t.detach().clone().contiguous() for t in held]


def _is(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


class Images(Training):
    """A small convolutional network with batch norm."""

    def __init__(self, optimizer: Any = None, **options: Any) -> None:
        torch.manual_seed(0)
        body = [
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3),
        ]
        head = [nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 5)]
        self.model = nn.Sequential(*body, *head)
        kind = optimizer or torch.optim.SGD
        self.optimizer = kind(self.model.parameters(), **({"lr": 0.05} | options))
        self.models, self.optimizers = [self.model], [self.optimizer]

    def batch(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Its own images for each iteration."""
        generator = torch.Generator().manual_seed(index)
        images = torch.randn(8, 3, 12, 12, generator=generator)
        return images, torch.randint(5, (8,), generator=generator)

    def step(self, index: int) -> torch.Tensor:
        images, labels = self.batch(index)
        loss = F.cross_entropy(self.model(images), labels)
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class Branches(nn.Module):
    """Every third call leaves out a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.often = nn.Linear(10, 16), nn.Linear(16, 16)
        self.last, self.calls = nn.Linear(16, 3), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = self.first(x).relu()
        return self.last(x if self.calls % 3 == 0 else self.often(x).relu())


class Layers(Training):
    """A multi-layer perceptron, with clipping, whose layers may be left out by turns."""

    def __init__(
        self,
        optimizer: Any = None,
        model: nn.Module | None = None,
        by_model: bool = False,
        **options: Any,
    ) -> None:
        torch.manual_seed(0)
        self.model = model or nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 3))
        kind = optimizer or torch.optim.SGD
        self.optimizer = kind(self.model.parameters(), **({"lr": 0.05} | options))
        self.clear: Any = self.model.zero_grad if by_model else self.optimizer.zero_grad
        self.by_model = by_model
        self.models, self.optimizers = [self.model], [self.optimizer]

    def loss(self, index: int) -> torch.Tensor:
        """Of its own batch for each iteration."""
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(16, 10, generator=generator)
        return F.cross_entropy(self.model(x), torch.randint(3, (16,), generator=generator))

    def step(self, index: int) -> torch.Tensor:
        # Looked up each time, as a script's line would.
        clear = self.model.zero_grad if self.by_model else self.optimizer.zero_grad
        clear(set_to_none=False)
        loss = self.loss(index)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()


class Seamed:
    """A training under seams, whose settings change at iteration borders."""

    def __init__(self, training: Training) -> None:
        self.training = training
        roots = [(model, True) for model in training.models]
        loop = Loop(None, training.optimizers[0], roots, weakref.WeakSet())
        self.seams = LoopSeams(loop, list(training.optimizers), None, NoEvents())
        for root in self.seams.roots:
            root.install()
        self._events = OptimizerEvents(lambda o: None, self._stepped)
        self._events.install()

    def _stepped(self, optimizer: torch.optim.Optimizer) -> None:
        for handle in self.seams.optimizers:
            handle.steps += handle.optimizer is optimizer

    def run(self, settings: Sequence[Setting], each: int = 3, begin: int = 0) -> dict[str, str]:
        """So many iterations under each setting; returns what did nothing in some of them."""
        idle: dict[str, str] = {}
        for place, setting in enumerate(settings):
            self.seams.apply(setting)
            for index in range(each):
                self.training.step(begin + place * each + index)
            idle |= self.seams.no_effect()
        return idle

    def prove(self, name: str, value: Any = True) -> Proof:
        """The seam-local proof of one unit against the script as it is."""
        self.seams.apply({})
        recording = Recording(self.seams.roots, self.seams.optimizers)
        recording.start()
        events = OptimizerEvents(recording.before_step, lambda o: None)
        events.install()
        try:
            self.training.step(1000)
        finally:
            events.uninstall()
            recording.finish()
        unit = find(name)
        kind = unit.touches or ("optimizer" if unit.needs == "optimizers" else "model")
        setting = {name: value}
        return judge(name, unit.numerics.value, recording, self.seams.apply, {}, setting, kind)

    def handle(self) -> OptimizerHandle:
        """The seam of the first optimizer."""
        return self.seams.optimizers[0]

    def leave(self) -> None:
        """As if hasten had never been there."""
        self.seams.apply({})
        self._events.uninstall()
        for root in self.seams.roots:
            root.uninstall()


@contextmanager
def seamed(training: Training) -> Iterator[Seamed]:
    """Put the seams in, and take them out again."""
    inside = Seamed(training)
    try:
        yield inside
    finally:
        inside.leave()


def plain(training: Training, iterations: int, begin: int = 0) -> list[torch.Tensor]:
    """What plain PyTorch makes of it."""
    for index in range(iterations):
        training.step(begin + index)
    return training.weights()


def same_bits(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    """Whether all values are equal; a zero may have another sign."""
    return len(ours) == len(theirs) and all(
        torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)
    )


def furthest(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """The largest relative distance of two tensors."""
    assert len(ours) == len(theirs)
    return max(
        float((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-12))
        for a, b in zip(ours, theirs, strict=True)
    )
