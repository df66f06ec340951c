"""Observes whether the process itself grows with every iteration, and what of the user's does.

Facts: "iterations" since the loop was recognised and "private" bytes at these moments (memory that
is no file's and not shared: a memory-mapped data set doesn't count); "held_by" and "place": the
container of the user's that gets longer with every iteration, and the line that fills it.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from types import CodeType
from typing import Any, ClassVar

import torch

from hasten.instrument.observe.assigned import assigned
from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.log import Log
from hasten.instrument.observe.places import is_users, place
from hasten.instrument.recorder import Iteration

_EVERY = 0.02  # seconds
_POINTS = 200  # when there are more, every second one is dropped
_FIRST = 4  # the iteration after which containers are measured
_OFTEN = 0.8  # elements more for each iteration
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_Containers = dict[int, tuple[str, CodeType, int, int]]  # path, code, length, bytes of an element


class Growth(Observer):
    """What becomes more with every iteration."""

    name: ClassVar[str] = "growth"

    def __init__(self) -> None:
        self._count = 0
        self._next, self._every = 0.0, _EVERY
        self._points: list[tuple[int, int]] = []
        self._early: _Containers = {}

    def iteration_ended(self, log: Log, iteration: Iteration) -> None:
        """Now and then, look."""
        self._count += 1
        if self._count == _FIRST:
            self._early = _containers()
        now = time.perf_counter()
        if now < self._next:
            return
        self._next = now + self._every
        if private := _private():
            self._points.append((self._count, private))
        if len(self._points) > _POINTS:
            self._points, self._every = self._points[::2], 2 * self._every

    def finish(self, log: Log, conductor: Any) -> dict[str, Any]:
        """What was seen."""
        if len(self._points) < 2:
            return {}
        counts, private = zip(*self._points, strict=True)
        facts: dict[str, Any] = {"iterations": list(counts), "private": list(private)}
        if self._count > _FIRST and (found := self._longer()) is not None:
            path, code = found
            at = assigned(code, path, graph=False)
            facts["held_by"] = path
            facts["place"] = asdict(place(*at)) if at is not None else None
        return facts

    def _longer(self) -> tuple[str, CodeType] | None:
        """The container that has grown most, by bytes, of those that grow all the time."""
        least = _OFTEN * (self._count - _FIRST)
        grown: list[tuple[int, str, CodeType]] = []
        for key, (path, code, length, size) in _containers().items():
            more = length - self._early.get(key, ("", code, 0, 0))[2]
            if more >= least and size:
                grown.append((more * size, path, code))
        return max(grown, key=lambda entry: entry[0])[1:] if grown else None


def _private() -> int:
    """Bytes of this process that are nobody else's; 0 where the system doesn't tell cheaply."""
    try:
        with open("/proc/self/statm", "rb") as file:
            fields = file.read().split()
        return (int(fields[1]) - int(fields[2])) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


def _containers() -> _Containers:
    """Lists, deques and dicts of the user's, also those one attribute deep."""
    found: _Containers = {}
    frame = sys._getframe(1)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
        if not is_users(frame.f_code.co_filename):
            continue
        for names in (frame.f_locals, frame.f_globals):
            for path, value in _values(names):
                if isinstance(value, (list, deque, dict)) and id(value) not in found:
                    found[id(value)] = path, frame.f_code, len(value), _size(value)
    return found


def _values(names: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in list(names.items()):
        if name.startswith("__"):
            continue
        yield name, value
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict) and not isinstance(value, (type, type(sys), torch.nn.Module)):
            yield from ((f"{name}.{inner}", item) for inner, item in list(own.items()))


def _size(container: Any) -> int:
    """Bytes of its last element, of tensors and arrays; 0 for what is small."""
    if not container:
        return 0
    last = next(reversed(container.values() if isinstance(container, dict) else container))
    parts = last if isinstance(last, (list, tuple)) else (last,)
    return sum(int(getattr(part, "nbytes", 0) or 0) for part in parts)
