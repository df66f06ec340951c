"""Observes gradient accumulation: what lies between two steps of an optimizer.

Facts: "optimizers", a list with one entry for each that stepped: "name", "subject", and "windows",
a list of what happened from one step to the next (see `Window.facts`). The first window is left
out, since it began before anything was looked at.

Only batches count in which parameters of the optimizer got gradients. Numbers that may lie on a
device are read when observing ends, so that nothing waits for them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch.optim import Optimizer

from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.log import Log
from hasten.instrument.seams.optimizer import parameters

_WINDOWS = 200  # of each optimizer
_TENSORS = 3  # of each optimizer whose gradients are looked at
_DEEP = 12  # operations between a loss and the mean that it is made from
_MEANS = ("NllLossBackward0", "NllLoss2DBackward0")
_MEAN = 1  # torch's number for reduction="mean"
#: Operations that pass a number on as it is.
_PASSING = ("ToCopyBackward0", "ViewBackward0", "SqueezeBackward0", "UnsqueezeBackward0")


@dataclass
class Window:
    """From one step of an optimizer to the next.

    Attributes:
        batches: with a backward pass that gave its parameters gradients.
        fresh: of these, how many came after an epoch began inside the window; None: none did.
        kept: at that border gradients were still there.
        unscaled: times that a GradScaler has unscaled its gradients.
        averaged: calls of a DistributedDataParallel that made processes average gradients.
        losses: for each batch, by what its mean loss was multiplied, and over how many targets
            (or weights of targets) the mean went; None: it isn't such a loss.
    """

    batches: int = 0
    fresh: int | None = None
    kept: bool = False
    unscaled: int = 0
    averaged: int = 0
    losses: list[tuple[list[Any], Any] | None] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """Plain data; "losses" in numbers, None where some batch has no such loss."""
        known = [loss for loss in self.losses if loss is not None]
        numbers = [[_product(factors), float(count)] for factors, count in known]
        return {
            "batches": self.batches,
            "fresh": self.fresh,
            "kept": self.kept,
            "unscaled": self.unscaled,
            "averaged": self.averaged,
            "losses": numbers if len(numbers) == self.batches else None,
        }


class Steps:
    """The windows of one optimizer."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        owned = [p for p in parameters(optimizer) if p.requires_grad]
        self._chosen = owned[:: max(1, -(-len(owned) // _TENSORS))]
        self.windows: list[Window] = []
        self._now = Window()
        self._batch = -1
        self._border = False
        self._marks: list[tuple[int, int]] = []

    @property
    def open(self) -> bool:
        """Whether it still looks."""
        return len(self.windows) < _WINDOWS

    def epoch_started(self) -> None:
        """Another epoch, perhaps inside a window."""
        self._border = self._now.batches > 0

    def before_backward(self) -> None:
        """What is there."""
        if self._border:
            self._border = False
            self._now.fresh, self._now.kept = 0, self._holds()
        self._marks = self._versions()

    def after_backward(self, batch: int, loss: tuple[list[Any], Any] | None) -> None:
        """What has come."""
        if self._marks == self._versions():
            return  # another optimizer's loss
        if batch != self._batch:
            self._batch = batch
            self._now.batches += 1
            if self._now.fresh is not None:
                self._now.fresh += 1
        self._now.losses.append(loss)

    def unscaled(self) -> None:
        """Its gradients were divided by a scale."""
        self._now.unscaled += 1

    def averaged(self) -> None:
        """The coming gradients will be averaged over processes."""
        self._now.averaged += 1

    def stepped(self) -> None:
        """The window is over."""
        self.windows.append(self._now)
        self._now, self._border = Window(), False

    def _versions(self) -> list[tuple[int, int]]:
        gradients = [p.grad for p in self._chosen]
        return [(id(g), 0 if g is None else g._version) for g in gradients]

    def _holds(self) -> bool:
        return any(p.grad is not None and bool((p.grad != 0).any()) for p in self._chosen)


class Accumulating(Observer):
    """Windows of every optimizer."""

    name: ClassVar[str] = "accumulation"

    def __init__(self) -> None:
        self._steps: dict[int, Steps] = {}
        self._batch = 0
        self._loss: tuple[list[Any], Any] | None = None

    def start(self, log: Log) -> None:
        """Hook the scaler, whose `step` unscales where the script hasn't."""
        unscale, observer = torch.amp.GradScaler.unscale_, self

        @functools.wraps(unscale)
        def unscaled(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if scaler.is_enabled() and (steps := observer._steps.get(id(optimizer))) is not None:
                steps.unscaled()
            return unscale(scaler, optimizer, *args, **kwargs)

        log.replace(torch.amp.GradScaler, "unscale_", unscaled)

    def _open(self) -> list[Steps]:
        return [steps for steps in self._steps.values() if steps.open]

    def epoch_started(self, log: Log, loader: Any, training: bool) -> None:
        """A border of the training loader."""
        for steps in self._open() if training else ():
            steps.epoch_started()

    def fetched(self, log: Log, loader: Any, batch: Any, training: bool) -> None:
        """Another batch."""
        self._batch += training

    def root_entered(self, log: Log, module: Any, training: bool) -> None:
        """`no_sync` has to be in force when the model is called."""
        if training and getattr(module, "require_backward_grad_sync", False):
            for steps in self._open():
                steps.averaged()

    def before_backward(self, log: Log, tensors: Any) -> None:
        """Look at the loss while its graph is there."""
        steps = self._open()
        self._loss = mean_of(tensors) if steps and isinstance(tensors, torch.Tensor) else None
        for one in steps:
            one.before_backward()

    def after_backward(self, log: Log, tensors: Any) -> None:
        """Whose gradients have come?"""
        for steps in self._open():
            steps.after_backward(self._batch, self._loss)

    def before_step(self, log: Log, optimizer: Any) -> None:
        """A window ends."""
        steps = self._steps.get(id(optimizer))
        if steps is None:
            steps = self._steps[id(optimizer)] = Steps(optimizer)
        if steps.open:
            steps.stepped()

    def finish(self, log: Log, conductor: Any) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "optimizers": [
                {
                    "name": type(steps.optimizer).__name__,
                    "subject": log.subject(steps.optimizer, "optimizer"),
                    "windows": [window.facts() for window in steps.windows[1:]],
                }
                for steps in self._steps.values()
            ]
        }


def mean_of(loss: torch.Tensor) -> tuple[list[Any], Any] | None:
    """By what a mean of cross entropies was multiplied, and over what the mean went.

    Returns:
        Factors (a negative exponent as a pair: the number and -1) and the sum of the targets'
        weights; None: the loss is something else, or more than that.
    """
    node: Any = loss.grad_fn
    factors: list[Any] = []
    for _ in range(_DEEP):
        if node is None:
            return None
        name = node.name()
        if name in _MEANS:
            mean = node._saved_reduction == _MEAN
            return (factors, node._saved_total_weight) if mean else None
        if name in ("MulBackward0", "DivBackward0"):
            other = node._saved_other
            if other is None or (isinstance(other, torch.Tensor) and other.numel() != 1):
                return None
            factors.append((other, 1 if name == "MulBackward0" else -1))
        elif name not in _PASSING:
            return None
        inputs = [before for before, _ in node.next_functions if before is not None]
        if len(inputs) != 1:
            return None
        node = inputs[0]
    return None


def _product(factors: list[Any]) -> float:
    product = 1.0
    for number, exponent in factors:
        product *= float(number) ** exponent
    return product
