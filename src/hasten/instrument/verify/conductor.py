"""A conductor that keeps a ledger of the whole training, from its first iteration on."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sized
from typing import Any

import torch
from torch.optim import Optimizer, lr_scheduler

from hasten.instrument.conductor import Conductor, Program
from hasten.instrument.seams.loader import OwnedLoader
from hasten.instrument.verify import facts
from hasten.instrument.verify.ledger import (
    BACKWARD,
    BATCH,
    PASS,
    SCHEDULED,
    STEP,
    Batch,
    Ledger,
)
from hasten.instrument.verify.movement import Movement
from hasten.instrument.verify.seeding import Seeding
from hasten.verification import Followed

_SCALED = 8  # losses of a script's own GradScaler that are remembered


class FollowingConductor(Conductor):
    """Owns the seams of one process, and its ledger.

    Attributes:
        ledger: what has happened so far.
        seeding: of this process.
    """

    def __init__(
        self, program: Callable[[Conductor], Program], seeding: Seeding | None = None
    ) -> None:
        super().__init__(program)
        self.seeding = seeding or Seeding(0)
        self.ledger = Ledger(self._opens)
        self._movement = Movement()
        self._saved: dict[str, None] = {}
        self._scaled: list[tuple[Any, Any]] = []
        self._scheduling = False

    def install(self) -> None:
        """The seams, and under them a hook in every scheduler."""
        classes = {lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau}
        for cls in sorted({c for base in classes for c in (base, *_below(base))}, key=repr):
            if "step" in vars(cls):
                self._patch(cls, "step", self._scheduler_step(vars(cls)["step"]))
        super().install()

    # --- which events begin an iteration -----------------------------------------------------

    def _opens(self, kind: str, source: Any) -> bool | None:
        """Whether an iteration begins with this; None while the loop isn't known."""
        loop = self._loop
        if loop is None:
            return None
        if loop.loader is not None:
            return kind == BATCH and self._is_training(source)
        if loop.stepper is not None:
            return kind == STEP and source is loop.stepper
        return kind == BACKWARD

    # --- events ------------------------------------------------------------------------------

    def epoch_started(self, loader: Any) -> None:
        """A pass over a loader begins; nothing has been drawn for it yet."""
        self.seeding.loader(loader)
        super().epoch_started(loader)
        if not self._suspended and self._is_training(loader):
            self.ledger.abandon()

    def fetched(self, loader: Any, batch: Any) -> None:
        """A batch goes to the script."""
        super().fetched(loader, batch)
        if self._suspended or self._foreign():
            return
        assert self._loader_seams is not None
        seen = self._seen(self._loader_seams.owned(loader), loader, batch)
        self.ledger.event(BATCH, loader, seen)

    def _seen(self, owned: OwnedLoader | None, loader: Any, batch: Any) -> Batch:
        """A batch as the ledger keeps it."""
        indices = _indices(owned, loader)
        count = len(indices) if indices is not None and loader._auto_collation else None
        return Batch(
            samples=count if count is not None else facts.samples(batch),
            tokens=facts.tokens(batch),
            content=facts.content(batch),
            indices=indices,
        )

    def epoch_ended(self, loader: Any) -> None:
        """The script has read the last batch."""
        super().epoch_ended(loader)
        if not self._suspended and self._is_training(loader) and not self._foreign():
            self.ledger.event(PASS, loader)

    def _before_backward(self, tensors: Any) -> None:
        super()._before_backward(tensors)
        self.ledger.event(BACKWARD, None, self._loss(tensors))

    def _loss(self, tensors: Any) -> torch.Tensor | None:
        """A copy of the loss, as it was before a script's own GradScaler."""
        if not isinstance(tensors, torch.Tensor) or tensors.numel() != 1:
            return None
        original = next((plain for scaled, plain in self._scaled if scaled is tensors), tensors)
        return original.detach().reshape(()).double().clone()

    def _before_step(self, optimizer: Optimizer) -> None:
        super()._before_step(optimizer)
        if not self._suspended:
            rates = tuple(_kept(group.get("lr", 0.0)) for group in optimizer.param_groups)
            self.ledger.event(STEP, optimizer, rates)
            self._movement.before_step(optimizer)

    def _scheduler_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        conductor = self

        @functools.wraps(step)
        def stepped(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            if conductor._scheduling:  # classes of torch call each other's
                return step(scheduler, *args, **kwargs)
            conductor._scheduling = True
            try:
                return step(scheduler, *args, **kwargs)
            finally:
                conductor._scheduling = False
                conductor.ledger.event(SCHEDULED, scheduler)

        return stepped

    def _save(self, save: Callable[..., Any]) -> Callable[..., Any]:
        inner = super()._save(save)

        @functools.wraps(save)
        def wrapped(what: Any, *args: Any, **kwargs: Any) -> Any:
            self._saved.update(dict.fromkeys(facts.saved_keys(what)))
            return inner(what, *args, **kwargs)

        return wrapped

    def _scale(self, scale: Callable[..., Any]) -> Callable[..., Any]:
        inner = super()._scale(scale)

        @functools.wraps(scale)
        def wrapped(scaler: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
            result = inner(scaler, outputs, *args, **kwargs)
            self._scaled = [*self._scaled[1 - _SCALED :], (result, outputs)]
            return result

        return wrapped

    # --- for the program ---------------------------------------------------------------------

    @property
    def marked(self) -> bool:
        """Whether the parameters were looked at."""
        return bool(self._movement)

    def mark(self) -> None:
        """Look at the parameters now, to see later which of them have moved."""
        assert self.seams is not None
        self._movement.mark(self.seams.roots)

    def followed(self, count: int | None, ended: bool) -> Followed:
        """All of it, of the first `count` iterations."""
        passed = len(self.ledger.rows)
        rows = self.ledger.rows[:count]
        if self.seams is None:
            return Followed(ended=ended)
        passes = sum(row.backwards for row in rows)
        sys.stdout.flush()
        sys.stderr.flush()
        roots, optimizers = self.seams.roots, self.seams.optimizers
        return Followed(
            iterations=tuple(row.counted() for row in rows),
            ended=ended,
            epochs=tuple(self.ledger.epochs),
            still=tuple(self._movement.still(roots)),
            slight=tuple(self._movement.slight(roots)),
            without_gradient=tuple(self._movement.without_gradient(roots)),
            keys=tuple(facts.checkpoint_keys(roots, optimizers)),
            saved=tuple(self._saved),
            no_effect=self.seams.no_effect(),
            reseeded=tuple(self.seeding.moved),
            losses_an_iteration=passes / max(1, len(rows)),
            passed=passed,
        )


class CountingConductor(FollowingConductor):
    """Keeps only what costs nothing beside an iteration: neither losses nor what batches hold.

    It is there while a plan is timed, and looks at the parameters before the first block.
    """

    def before_block(self) -> None:
        """Nothing has come into force yet."""
        if not self.marked:
            self.mark()

    def _seen(self, owned: OwnedLoader | None, loader: Any, batch: Any) -> Batch:
        indices = _indices(owned, loader)
        count = len(indices) if indices is not None and loader._auto_collation else None
        return Batch(
            samples=count if count is not None else facts.samples(batch),
            tokens=None,
            content="",
            indices=None,
            digest="" if indices is None else facts.quick_multiset(indices),
        )

    def _loss(self, tensors: Any) -> None:
        return None


def _indices(owned: OwnedLoader | None, loader: Any) -> tuple[Any, ...] | None:
    """Of the samples of the batch that came last; None: the index stream isn't ours."""
    if owned is None or owned.reason is not None or not owned.recent:
        return None
    index = owned.recent[-1]
    together = loader._auto_collation and isinstance(index, Sized)
    return tuple(index) if together else (index,)


def _kept(rate: Any) -> Any:
    """A learning rate as it is now; a tensor's value is read later, where waiting costs nothing."""
    return rate.detach().clone() if isinstance(rate, torch.Tensor) else float(rate)


def _below(base: Any) -> list[Any]:
    return [c for cls in base.__subclasses__() for c in (cls, *_below(cls))]
