"""Observes whether the autograd graphs of earlier iterations stay alive.

A small object is put into the metadata of each graph's nodes, which torch keeps as long as the
node itself: when it is gone, the graph is. Facts: "passes", "steps", "alive" (of the graphs that
are older than some passes, at the last look), "older", "held_by" (the user's variable) and "place".
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, ClassVar

import torch

from hasten.instrument.observe.assigned import assigned
from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.log import Log
from hasten.instrument.observe.places import is_users, place, users_frame

_KEY = "hasten"
_LOOKS = (20, 36, 52)  # backward passes at which is looked; 52 is the last
_YOUNG = 5  # the last passes: their graphs may well be alive
_NODES = 48  # of a graph that are marked, nearest to the loss
_FAR = 400  # nodes that are searched for an earlier mark
_FRAMES, _ITEMS = 8, 200


class _Mark:
    """Lives as long as any node of the graph of one backward pass."""

    def __init__(self, number: int) -> None:
        self.number = number


class Graphs(Observer):
    """Graphs that are kept."""

    name: ClassVar[str] = "graphs"

    def __init__(self) -> None:
        self._marks: list[weakref.ref[_Mark]] = []
        self._steps = 0
        self._facts: dict[str, Any] = {}

    def after_step(self, log: Log, optimizer: Any) -> None:
        """Count the steps, since within one a graph may serve several passes."""
        self._steps += 1

    def before_backward(self, log: Log, tensors: Any) -> None:
        """Mark this graph; now and then, look for the earlier ones."""
        number = len(self._marks)
        if number > _LOOKS[-1] or not isinstance(tensors, torch.Tensor):
            return
        if number in _LOOKS:
            self._look(number, tensors)
        mark = _Mark(number)
        for node in _nodes(tensors.grad_fn, _NODES):
            node.metadata.setdefault(_KEY, mark)
        self._marks.append(weakref.ref(mark))

    def _look(self, number: int, loss: torch.Tensor) -> None:
        older = self._marks[: number - _YOUNG]
        alive = sum(mark() is not None for mark in older)
        self._facts = {
            "passes": number,
            "steps": self._steps,
            "alive": alive,
            "older": len(older),
        }
        if alive < 0.9 * len(older) or self._steps < 10:
            return
        oldest = number - _YOUNG
        found = _holder(oldest, loss)
        at = users_frame(2)
        self._facts["held_by"], self._facts["place"] = found or (
            "",
            asdict(place(*at)) if at is not None else None,
        )

    def finish(self, log: Log, conductor: Any) -> dict[str, Any]:
        """What the last look has shown."""
        return self._facts


def _nodes(start: Any, limit: int) -> Iterator[Any]:
    """Nodes of a graph, breadth first; leaves' own nodes left out."""
    waiting, seen = deque([start] if start is not None else []), {start}
    while waiting and limit:
        node = waiting.popleft()
        limit -= 1
        yield node
        for following, _ in node.next_functions:
            if following is None or following in seen or "AccumulateGrad" in following.name():
                continue
            seen.add(following)
            waiting.append(following)


def _leads_back(value: torch.Tensor, oldest: int) -> bool:
    """Whether a tensor's graph holds that of a pass before the number `oldest`."""
    for node in _nodes(value.grad_fn, _FAR):
        mark = node.metadata.get(_KEY)
        if mark is not None and mark.number < oldest:
            return True
    return False


def _holder(oldest: int, loss: torch.Tensor) -> tuple[str, dict[str, Any] | None] | None:
    """The user's variable that holds earlier graphs, and the line that gives it its value."""
    frame = sys._getframe(1)
    for _ in range(60):
        if frame.f_back is None:
            return None
        frame = frame.f_back
        if not is_users(frame.f_code.co_filename):
            continue
        for names in (frame.f_locals, frame.f_globals):
            for name, value in list(names.items()):
                path = None if value is loss else _reaches(value, name, oldest, 2)
                if path is not None:
                    at = assigned(frame.f_code, path)
                    return path, asdict(place(*at)) if at is not None else None
    return None


def _reaches(value: Any, path: str, oldest: int, depth: int) -> str | None:
    """How to get from a variable to a tensor with an earlier graph; None: not at all."""
    if isinstance(value, torch.Tensor):
        return path if value.grad_fn is not None and _leads_back(value, oldest) else None
    if depth == 0 or isinstance(value, (str, bytes, int, float, type, torch.nn.Module)):
        return None
    for name, item in _parts(value):
        if (found := _reaches(item, path + name, oldest, depth - 1)) is not None:
            return found
    return None


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, (list, tuple, deque)):
        return [("[]", item) for item in list(value)[:2]]
    if isinstance(value, dict):
        return [("[]", item) for item in list(value.values())[:_ITEMS]]
    own = vars(value) if hasattr(value, "__dict__") and not callable(value) else {}
    if type(value).__module__.partition(".")[0] in ("torch", "builtins", "hasten"):
        return []
    return [(f".{name}", item) for name, item in list(own.items())[:_ITEMS]]
