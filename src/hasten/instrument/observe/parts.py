"""Observes which root and which optimizer an iteration's time goes to.

Facts, over the observed plain iterations: "roots" and "optimizers", each a list with "name" (of
the class), "calls" (an iteration) and "seconds" (an iteration, mean).
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.log import Log
from hasten.instrument.recorder import Iteration

_MOST = 16  # of each that are told apart


class _Clock:
    """Seconds of one thing, in the present iteration and over all."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing  # kept alive, so that its id stays its own
        self.begun = self.present = self.seconds = 0.0
        self.calls = self.now = 0

    def start(self) -> None:
        self.begun = time.perf_counter()

    def stop(self) -> None:
        self.present += time.perf_counter() - self.begun
        self.now += 1

    def book(self, counts: bool) -> None:
        if counts:
            self.seconds += self.present
            self.calls += self.now
        self.present, self.now = 0.0, 0


class Parts(Observer):
    """Forward passes by root, steps by optimizer."""

    name: ClassVar[str] = "parts"

    def __init__(self) -> None:
        self._roots: dict[int, _Clock] = {}
        self._optimizers: dict[int, _Clock] = {}
        self._iterations = 0

    def iteration_ended(self, log: Log, iteration: Iteration) -> None:
        """Times of plain iterations count."""
        counts = log.observing and not iteration.void
        self._iterations += counts
        for clock in (*self._roots.values(), *self._optimizers.values()):
            clock.book(counts)

    def root_entered(self, log: Log, module: Any, training: bool) -> None:
        """A call begins."""
        _start(self._roots, module)

    def root_left(self, log: Log, module: Any, training: bool) -> None:
        """It has ended."""
        _stop(self._roots, module)

    def before_step(self, log: Log, optimizer: Any) -> None:
        """A step begins."""
        _start(self._optimizers, optimizer)

    def after_step(self, log: Log, optimizer: Any) -> None:
        """It has ended."""
        _stop(self._optimizers, optimizer)

    def finish(self, log: Log, conductor: Any) -> dict[str, Any]:
        """Means of an iteration."""
        if not self._iterations:
            return {}
        return {"roots": self._means(self._roots), "optimizers": self._means(self._optimizers)}

    def _means(self, clocks: dict[int, _Clock]) -> list[dict[str, Any]]:
        return [
            {
                "name": type(clock.thing).__name__,
                "calls": clock.calls / self._iterations,
                "seconds": clock.seconds / self._iterations,
            }
            for clock in clocks.values()
            if clock.calls
        ]


def _start(clocks: dict[int, _Clock], thing: Any) -> None:
    clock = clocks.get(id(thing))
    if clock is None:
        if len(clocks) >= _MOST:
            return
        clock = clocks[id(thing)] = _Clock(thing)
    clock.start()


def _stop(clocks: dict[int, _Clock], thing: Any) -> None:
    if (clock := clocks.get(id(thing))) is not None:
        clock.stop()
