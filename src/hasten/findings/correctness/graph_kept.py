"""The autograd graphs of all iterations so far stay alive.

What it is
    A variable holds a loss (or another result) together with its graph: `total += loss` or
    `losses.append(loss)` instead of `loss.item()` or `loss.detach()`.

Why it costs
    Memory grows with every iteration, on the device as well, until the run ends out of memory
    hours later. A long chain of sums also takes long to free, or overflows the stack.

How it is measured
    Each graph carries a mark that lives as long as the graph. After some dozen iterations nearly
    all marks of the earlier ones are alive. A few results that are kept for accumulation, and
    graphs that a later pass still uses, are not that.

What to do
    Add up `loss.item()`, or on an accelerator, where that waits for the device,
    `loss.detach()`.

Source
    PyTorch FAQ, "My model reports cuda runtime error(2): out of memory".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, Kind
from hasten.findings.correctness._places import told


class GraphKept(Finding):
    """Graphs that nobody frees."""

    name: ClassVar[str] = "graph-kept"
    subject: ClassVar[str] = "correctness"
    kind: ClassVar[Kind] = Kind.WRONG

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """The marks of nearly all earlier graphs are alive."""
        facts = diagnosis.observed.facts.get("graphs", {})
        if "held_by" not in facts:
            return
        holder = facts["held_by"]
        what = f"{holder.replace('[]', '')} holds" if holder else "something holds"
        yield Found(
            summary=f"{what} the graphs of all iterations so far: memory grows without end",
            todo="keep loss.item() or loss.detach() instead of the loss itself",
            evidence=(
                f"{facts['alive']} of {facts['older']} graphs of earlier iterations were alive "
                f"after {facts['passes']} backward passes and {facts['steps']} steps",
            ),
            place=told(facts["place"]),
        )
