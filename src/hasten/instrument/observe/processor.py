"""Observes how long this process had to wait for a core, and who else uses the machine.

Facts, over the observed iterations: "delay" (seconds in which the main thread could have run and
had no core, an iteration), "own" and "others" (cores that this process with its workers, and all
other programs, have used on average), "threads" (torch's intra-op threads); None where the system
doesn't tell. Events: "threads_set".
"""

from __future__ import annotations

import os
import time
from typing import Any, ClassVar

import psutil
import torch

from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.log import Log
from hasten.instrument.recorder import Iteration


class Processor(Observer):
    """Whether the processor is there when the script wants it."""

    name: ClassVar[str] = "processor"

    def __init__(self) -> None:
        self._delay: int | None = None
        self._waited = 0
        self._count = 0
        self._begun: tuple[float, float, float] | None = None

    def start(self, log: Log) -> None:
        """Hook the setting of threads."""
        log.wrap(torch, "set_num_threads", "threads_set", lambda count: {"threads": int(count)})

    def iteration_ended(self, log: Log, iteration: Iteration) -> None:
        """Read the scheduler's account of the main thread."""
        if not log.observing:
            return
        now = _run_delay()
        if self._begun is None:
            self._begun = time.monotonic(), _machine(), _tree()
        elif not iteration.void and now is not None and self._delay is not None:
            self._waited += now - self._delay
            self._count += 1
        self._delay = now

    def finish(self, log: Log, conductor: Any) -> dict[str, Any]:
        """Averages of the observed stretch."""
        found: dict[str, Any] = {"threads": torch.get_num_threads(), "delay": None}
        if self._count:
            found["delay"] = 1e-9 * self._waited / self._count
        if self._begun is not None:
            begun, machine, own = self._begun
            seconds = max(1e-9, time.monotonic() - begun)
            found["own"] = (_tree() - own) / seconds
            found["others"] = max(0.0, (_machine() - machine) / seconds - found["own"])
        return found


def _run_delay() -> int | None:
    """Nanoseconds in which the main thread was ready and did not run."""
    try:
        with open(f"/proc/{os.getpid()}/task/{os.getpid()}/schedstat", "rb") as file:
            return int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _machine() -> float:
    """Processor seconds that were used on all cores since the machine's start."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return float(sum(times) - idle - guest)  # user time holds that of guests


def _tree() -> float:
    """Processor seconds of this process and its living and ended children."""
    own = psutil.Process()
    spent = sum(own.cpu_times()[:4])
    for child in own.children(recursive=True):
        try:
            spent += sum(child.cpu_times()[:2])
        except psutil.Error:
            continue
    return float(spent)
