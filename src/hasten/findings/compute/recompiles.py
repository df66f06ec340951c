"""torch.compile goes on compiling while the script trains.

What it is
    The script's compiled model meets inputs for which it has to be compiled again.

Why it costs
    Each compilation takes seconds, and after a limit torch silently runs the model
    uncompiled.

How it is measured
    Iterations in which dynamo made new graphs, beyond the time of the others.

What to do
    Pad or bucket inputs to few shapes, `drop_last=True`, or `torch.compile(...,
    dynamic=True)`.

Source
    PyTorch, "torch.compile troubleshooting": recompilation; pytorch issue 140229.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found

_COMPILATIONS = 2  # in plain iterations, at least


class Recompiles(Finding):
    """A model that is compiled again and again."""

    name: ClassVar[str] = "recompiles"
    subject: ClassVar[str] = "compute"

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Several plain iterations were spent compiling."""
        facts = diagnosis.observed.facts.get("compiling", {})
        if facts.get("compilations", 0) < _COMPILATIONS or not diagnosis.observed.iterations:
            return
        compiled = diagnosis.observed.all("compile")
        yield Found(
            summary="the model is compiled again while it trains",
            todo="bring inputs to few shapes, drop_last=True, or compile with dynamic=True",
            evidence=(
                f"{facts['compilations']} of {diagnosis.observed.iterations} iterations compiled, "
                f"{facts['seconds']:.1f} s in all",
            ),
            place=compiled[0].place if compiled else None,
            cost=facts["seconds"] / diagnosis.observed.iterations,
        )
