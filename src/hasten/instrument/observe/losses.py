"""Observes the values that backward passes start from.

Facts: "passes", "course" (number of a pass and the mean of the finite values up to it, in few
points), and where one isn't finite: "losses" (the last values before and at the first of these),
"bad" (how many of the passes since then weren't finite), "first" (number of that pass, from 1),
"place", "parameters" and "broken" (tensors of parameters, and how many hold a value that isn't
finite), "scaler". Values stay on the device until observing ends.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar

import torch

from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.log import Log
from hasten.instrument.observe.places import place, users_frame

_KEPT = 4000
_SHOWN = 5
_POINTS = 200  # of the course


class Losses(Observer):
    """Losses that are no numbers."""

    name: ClassVar[str] = "losses"

    def __init__(self) -> None:
        self._losses: list[torch.Tensor] = []
        self._places: list[tuple[str, int, str] | None] = []

    def before_backward(self, log: Log, tensors: Any) -> None:
        """Keep a copy of the value, since the script may change it."""
        if not isinstance(tensors, torch.Tensor) or tensors.numel() != 1:
            return
        if len(self._losses) < _KEPT and tensors.is_floating_point():
            self._losses.append(tensors.detach().reshape(()).float().clone())
            self._places.append(users_frame(2))

    def finish(self, log: Log, conductor: Any) -> dict[str, Any]:
        """Where it began, and what has become of the parameters."""
        if not self._losses:
            return {}
        device = self._losses[-1].device
        values = torch.stack([loss.to(device) for loss in self._losses]).tolist()
        bad = [number for number, value in enumerate(values) if not _finite(value)]
        if not bad:
            return {"passes": len(values), "course": course(values)}
        first = bad[0]
        at = self._places[first]
        shown = values[max(0, first - _SHOWN + 1) : first + 1]
        parameters = [p for r in conductor.seams.roots for p in r.module.parameters()]
        return {
            "passes": len(values),
            "first": first + 1,
            "bad": len(bad),
            "last_bad": sum(not _finite(value) for value in values[-3:]),
            "losses": [repr(value) if not _finite(value) else f"{value:.4g}" for value in shown],
            "place": asdict(place(*at)) if at is not None else None,
            "parameters": len(parameters),
            "broken": sum(not bool(torch.isfinite(p).all()) for p in parameters),
            "scaler": conductor.own_scaler,
            "course": course(values),
        }


def course(values: list[float]) -> list[tuple[int, float]]:
    """The losses in few points: number of the last pass, and the mean of the finite ones."""
    group = -(-len(values) // _POINTS)
    found = []
    for first in range(0, len(values), group or 1):
        finite = [value for value in values[first : first + group] if _finite(value)]
        if finite:
            found.append((min(first + group, len(values)), sum(finite) / len(finite)))
    return found


def _finite(value: float) -> bool:
    return value == value and abs(value) != float("inf")
