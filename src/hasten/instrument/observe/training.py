"""Observes the steps of training: backward, optimizer, zero_grad, scheduler, scaler, clipping.

Events: "backward", "step" (subject), "zero_grad" (subject), "scheduler" (facts: name;
subject), "scheduler_made" for the step that a scheduler takes when it is made, "clip", "scale",
"unscale", "scaler_step", "scaler_update".
"""

from __future__ import annotations

import functools
import threading
import time
from typing import Any, ClassVar

import torch

from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.log import Log
from hasten.instrument.observe.places import users_frame
from hasten.instrument.recorder import OPTIMIZER


class Training(Observer):
    """Where and in which order the script trains."""

    name: ClassVar[str] = "training"

    def __init__(self) -> None:
        self._recorder: Any = None
        self._begun: list[tuple[float, tuple[str, int, str] | None]] = []

    def attach(self, recorder: Any) -> None:
        """The recorder for which clearing and clipping gradients is the optimizer's."""
        self._recorder = recorder

    def _of_the_optimizer(self, log: Log, owner: Any, name: str) -> None:
        original, recorder = getattr(owner, name), self._recorder
        main = threading.main_thread()

        @functools.wraps(original)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or threading.current_thread() is not main:
                return original(*args, **kwargs)
            recorder.enter(OPTIMIZER)
            try:
                return original(*args, **kwargs)
            finally:
                recorder.leave()

        log.replace(owner, name, counted)

    def start(self, log: Log) -> None:
        """Hook what has no event of the conductor's."""
        from torch.nn.utils import clip_grad

        clipping = ("clip_grad_norm_", "clip_grad_value_")
        clearing = (torch.optim.Optimizer, torch.nn.Module)
        if self._recorder is not None:
            for owner in clearing:
                self._of_the_optimizer(log, owner, "zero_grad")
            for name in clipping:
                self._of_the_optimizer(log, clip_grad, name)
        log.wrap(torch.optim.Optimizer, "zero_grad", "zero_grad", noun="optimizer")
        log.wrap(torch.nn.Module, "zero_grad", "zero_grad", noun="module")
        for name in clipping:
            log.wrap(clip_grad, name, "clip")
            log.replace(torch.nn.utils, name, getattr(clip_grad, name))
        scaler = torch.amp.GradScaler
        log.wrap(scaler, "scale", "scale")
        log.wrap(scaler, "unscale_", "unscale")
        log.wrap(scaler, "step", "scaler_step")
        log.wrap(scaler, "update", "scaler_update")
        self._wrap_scheduler(log, torch.optim.lr_scheduler.LRScheduler)
        self._wrap_scheduler(log, torch.optim.lr_scheduler.ReduceLROnPlateau)

    def _wrap_scheduler(self, log: Log, base: type) -> None:
        """Schedulers call their own `step` once when they are made, which is told apart."""
        classes: list[type] = [base, *_below(base)]
        for cls in dict.fromkeys(classes):
            if "step" in vars(cls):
                log.wrap(cls, "step", "scheduler", _scheduler_facts, noun="scheduler")

    def before_backward(self, log: Log, tensors: Any) -> None:
        """Remember when and where."""
        self._begun.append((time.perf_counter(), users_frame(2)))

    def after_backward(self, log: Log, tensors: Any) -> None:
        """The pass as an event."""
        if self._begun:
            begun, at = self._begun.pop()
            log.event("backward", "", time.perf_counter() - begun, at)

    def before_step(self, log: Log, optimizer: Any) -> None:
        """The step as an event, before what it does."""
        self._begun.append((time.perf_counter(), users_frame(2)))

    def after_step(self, log: Log, optimizer: Any) -> None:
        """It comes with its time, and after what a closure did inside it."""
        if self._begun:
            begun, at = self._begun.pop()
            subject, name = log.subject(optimizer, "optimizer"), type(optimizer).__name__
            log.event("step", subject, time.perf_counter() - begun, at, name=name)


def _below(base: type) -> list[type]:
    found: list[type] = []
    direct: list[type] = base.__subclasses__()
    for cls in direct:
        found += [cls, *_below(cls)]
    return found


def _scheduler_facts(scheduler: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": type(scheduler).__name__}
    made = getattr(scheduler, "last_epoch", 0)
    return {**facts, "kind": "scheduler_made"} if made == -1 else facts
