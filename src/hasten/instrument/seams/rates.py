"""Seam: learning rates that are multiplied for the length of a step.

The groups hold the script's own rate before and after, so schedules of every kind (also those that
set a rate, such as OneCycleLR), logs and checkpoints are what the script makes them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer

from hasten.instrument.seams.optimizer import OptimizerEvents


class ScaledRates:
    """Steps with learning rates of so many times the script's own.

    Args:
        factors: by the optimizer's class name; others keep their rate.
        due: asked at each step whether to multiply.
    """

    def __init__(self, factors: Mapping[str, float], due: Callable[[], bool]) -> None:
        self._factors, self._due = dict(factors), due
        self._own: weakref.WeakKeyDictionary[Optimizer, list[tuple[dict[str, Any], Any]]]
        self._own = weakref.WeakKeyDictionary()
        self._events = OptimizerEvents(self._before, self._after)

    def install(self) -> None:
        """Multiply from the next step on."""
        self._events.install()

    def uninstall(self) -> None:
        """Step as the script has it."""
        self._events.uninstall()

    def _before(self, optimizer: Optimizer) -> None:
        self._after(optimizer)  # a step that raised has left its rates behind
        factor = self._factors.get(type(optimizer).__name__)
        if factor is None or not self._due():
            return
        groups = [group for group in optimizer.param_groups if "lr" in group]
        self._own[optimizer] = [(group, group["lr"]) for group in groups]
        for group in groups:
            group["lr"] = group["lr"] * factor

    def _after(self, optimizer: Optimizer) -> None:
        for group, rate in self._own.pop(optimizer, ()):
            group["lr"] = rate
