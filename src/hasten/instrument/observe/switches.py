"""Observes switches: anomaly detection, and the profilers.

Events: "anomaly_on", "profiler". Facts: "anomaly": whether it was on at the end of an iteration's
backward passes. A relief "relief:anomaly" turns it off for blocks.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.log import Log


class Switches(Observer):
    """Debugging aids that a script turns on."""

    name: ClassVar[str] = "switches"

    def __init__(self) -> None:
        self._anomaly = 0

    def start(self, log: Log) -> None:
        """Hook the ways to turn them on."""
        for owner in (torch.autograd.set_detect_anomaly, torch.autograd.detect_anomaly):
            log.wrap(owner, "__init__", "anomaly_on", _on)
        log.wrap(torch.profiler.profile, "__init__", "profiler")
        log.wrap(torch.autograd.profiler.profile, "__init__", "profiler")

    def before_backward(self, log: Log, tensors: Any) -> None:
        """Count the passes under anomaly detection."""
        self._anomaly += log.observing and torch.is_anomaly_enabled()

    def finish(self, log: Log, conductor: Any) -> dict[str, Any]:
        """Whether it was on in the observed iterations."""
        return {"anomaly": self._anomaly > 0}


def _on(switch: Any, mode: bool = True, *args: Any, **kwargs: Any) -> dict[str, Any]:
    return {} if mode else {"kind": "anomaly_off"}
