"""torch.compile has to split the model into several graphs.

What it is
    The script's compiled model runs code that can't be compiled between its graphs.

Why it costs
    Each graph is entered anew with all of its checks, and nothing is fused across the break.

How it is measured
    Blocks with compilation off take turns with blocks as the script is: only where compiling
    with its breaks makes the script slower is there a cost that is surely due to it.

What to do
    Move `.item()`, `print`, logging and numpy out of the compiled model;
    TORCH_LOGS=graph_breaks names each.

Source
    PyTorch, "torch.compile troubleshooting": graph breaks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, gained, milliseconds
from hasten.records import Setting


class GraphBreaks(Finding):
    """A compiled model in pieces, which is slower than one that is not compiled."""

    name: ClassVar[str] = "graph-breaks"
    subject: ClassVar[str] = "compute"

    def what_if(self, diagnosis: Diagnosis) -> Setting | None:
        """Without compilation, where there are breaks."""
        facts = diagnosis.observed.facts.get("compiling", {})
        return {"relief:compile": True} if facts.get("breaks") else None

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """That is surely faster."""
        facts, what_if = diagnosis.observed.facts.get("compiling", {}), gained(diagnosis, self.name)
        if what_if is None or not facts.get("breaks"):
            return
        because = facts.get("breaks_because") or {}
        compiled = diagnosis.observed.all("compile")
        yield Found(
            summary=f"the compiled model breaks into {facts['graphs']} graphs",
            todo="move what can't be compiled out of the model; TORCH_LOGS=graph_breaks names it",
            evidence=(
                f"{milliseconds(what_if.before)} an iteration, {milliseconds(what_if.after)} "
                "without any compilation",
                *(f"because: {reason}" for reason in list(because)[:2]),
            ),
            place=compiled[0].place if compiled else None,
            cost=what_if.gain,
        )
