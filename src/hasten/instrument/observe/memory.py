"""Observes the memory of the process while the script trains.

Facts: "seconds" since the loop was recognised, "resident" bytes at these moments, and "device"
bytes that torch has allocated on an accelerator (empty without one). Few points however long it
takes.
"""

from __future__ import annotations

import os
import time
from typing import Any, ClassVar

import torch

from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.log import Log
from hasten.instrument.recorder import Iteration

_POINTS = 240  # when there are more, every second one is dropped
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class Memory(Observer):
    """Whether memory grows, and how."""

    name: ClassVar[str] = "memory"

    def __init__(self) -> None:
        self._begun = 0.0
        self._next = 0.0
        self._every = 0.02  # seconds
        self._points: list[tuple[float, int, int]] = []
        self._accelerated: bool | None = None  # asked once, since it is dear

    def iteration_ended(self, log: Log, iteration: Iteration) -> None:
        """Now and then, look."""
        now = time.perf_counter()
        if now < self._next:
            return
        self._begun = self._begun or now
        self._next = now + self._every
        resident = _resident()
        if resident:
            if self._accelerated is None:
                self._accelerated = torch.cuda.is_available()
            device = torch.cuda.memory_allocated() if self._accelerated else 0
            self._points.append((now - self._begun, resident, device))
        if len(self._points) > _POINTS:
            self._points, self._every = self._points[::2], 2 * self._every

    def finish(self, log: Log, conductor: Any) -> dict[str, Any]:
        """What was seen."""
        if len(self._points) < 2:
            return {}
        seconds, resident, device = zip(*self._points, strict=True)
        return {
            "seconds": [round(s, 4) for s in seconds],
            "resident": list(resident),
            "device": list(device) if any(device) else [],
        }


def _resident() -> int:
    """Bytes of this process in memory; 0 where the system doesn't tell cheaply."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0
