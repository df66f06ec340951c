"""Observes what the script writes about itself: `print` and `logging`.

Events: "output", with its time. What it takes is told apart from plain iterations in the account
of the run.
"""

from __future__ import annotations

import builtins
import functools
import logging
import threading
import time
from typing import Any, ClassVar

from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.log import Log
from hasten.instrument.observe.places import users_frame


class Output(Observer):
    """Where the script prints and logs, and what that takes.

    Attributes:
        seconds: in the present iteration; the conductor's account sets it back.
    """

    name: ClassVar[str] = "output"

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = False

    def start(self, log: Log) -> None:
        """Hook both."""
        log.replace(builtins, "print", self._timed(log, builtins.print))
        log.replace(logging.Logger, "handle", self._timed(log, logging.Logger.handle))

    def _timed(self, log: Log, original: Any) -> Any:
        import torch

        main = threading.main_thread()

        def timed(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # traced as if nobody looked
                return original(*args, **kwargs)
            if self._inside or threading.current_thread() is not main:
                return original(*args, **kwargs)
            at, begun, self._inside = users_frame(), time.perf_counter(), True
            try:
                return original(*args, **kwargs)
            finally:
                self._inside = False
                spent = time.perf_counter() - begun
                self.seconds += spent
                log.event("output", "", spent, at)

        return functools.update_wrapper(timed, original)  # also for pickle

    def taken(self) -> float:
        """Seconds since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds
