"""Observes the script's own `torch.compile`: graphs, breaks, and compilation while it trains.

Events: "compile" (the call of `torch.compile`). Facts: "graphs" and "breaks" since the start,
"breaks_because" (reason: count), "seconds" (of observed iterations in which something was
compiled, beyond a usual one), "compilations" (such iterations).
"""

from __future__ import annotations

import statistics
import sys
from typing import Any, ClassVar

import torch

from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.log import Log
from hasten.instrument.recorder import Iteration

_REASONS = 8


class Compiling(Observer):
    """Compilation that goes on while the script trains."""

    name: ClassVar[str] = "compiling"

    def __init__(self) -> None:
        self._graphs = 0
        self._quiet: list[float] = []
        self._busy: list[float] = []

    def start(self, log: Log) -> None:
        """Hook `torch.compile`."""
        log.wrap(torch, "compile", "compile")

    def iteration_ended(self, log: Log, iteration: Iteration) -> None:
        """Tell iterations apart in which graphs came."""
        if not log.observing:
            self._graphs = _graphs()
            return
        now = _graphs()
        compiled, self._graphs = now != self._graphs, now
        if not iteration.void:
            (self._busy if compiled else self._quiet).append(iteration.seconds)

    def finish(self, log: Log, conductor: Any) -> dict[str, Any]:
        """What dynamo counted."""
        if "torch._dynamo.utils" not in sys.modules or not _graphs():
            return {}
        from torch._dynamo.utils import counters

        usual = statistics.median(self._quiet) if self._quiet else 0.0
        breaks = counters["graph_break"].most_common(_REASONS)
        return {
            "graphs": int(counters["stats"]["unique_graphs"]),
            "breaks": sum(counters["graph_break"].values()),
            "breaks_because": {reason.splitlines()[0][:200]: n for reason, n in breaks if reason},
            "seconds": sum(max(0.0, seconds - usual) for seconds in self._busy),
            "compilations": len(self._busy),
        }


def _graphs() -> int:
    if "torch._dynamo.utils" not in sys.modules:
        return 0
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
