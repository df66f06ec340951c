"""Other programs take the processor away from the training.

What it is
    The training process was ready to run and had no core, while other programs used cores.

Why it costs
    An iteration waits until the scheduler lets it go on.

How it is measured
    The scheduler's own account of how long the main thread waited for a core, and the
    processor time of everything else on the machine.

What to do
    End the other programs, or ask for cores of your own. Nothing is wrong with the script.

Source
    Linux documentation, scheduler statistics (schedstat).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, Kind, milliseconds

_SHARE = 0.05  # of an iteration
_OTHERS = 0.3  # cores


class BusyMachine(Finding):
    """A processor that is shared with others."""

    name: ClassVar[str] = "busy-machine"
    subject: ClassVar[str] = "machine"
    kind: ClassVar[Kind] = Kind.LIMIT

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """The main thread waited for a core, and others had it."""
        facts = diagnosis.observed.facts.get("processor", {})
        delay, others = facts.get("delay"), facts.get("others", 0.0)
        # The system counts what observers waited for as well.
        delay = min(delay or 0.0, diagnosis.iteration)
        if not delay or delay < _SHARE * diagnosis.iteration or others < _OTHERS:
            return
        yield Found(
            summary="other programs take the processor away",
            todo="end them or ask for cores of your own; the script is not to blame",
            evidence=(
                f"{milliseconds(delay)} of an iteration the training was ready and had no core",
                f"other programs used {others:.1f} cores, this one {facts.get('own', 0.0):.1f}",
            ),
            cost=delay,
        )
