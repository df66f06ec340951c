"""Anomaly detection or the autograd profiler is left on.

What it is
    `torch.autograd.set_detect_anomaly(True)` records where every operation came from and looks
    for NaN in every gradient; `torch.autograd.profiler` records every operation.

Why it costs
    Both do work for each operation of forward and backward, every iteration.

How it is measured
    Blocks of iterations with the switch off take turns with blocks as the script has it.

What to do
    Turn it on only while you look for a fault.

Source
    PyTorch performance tuning guide, "Disable debugging APIs".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, milliseconds
from hasten.records import Setting


class DebugModeOn(Finding):
    """Debugging aids that are on in the training loop."""

    name: ClassVar[str] = "debug-mode-on"
    subject: ClassVar[str] = "habits"

    def what_if(self, diagnosis: Diagnosis) -> Setting | None:
        """Anomaly detection off, where it is on."""
        on = diagnosis.observed.facts.get("switches", {}).get("anomaly")
        return {"relief:anomaly": True} if on else None

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """The switch is on and turning it off is faster."""
        what_if = diagnosis.what_ifs.get(self.name)
        if what_if is None or not what_if.sure or what_if.gain <= 0:
            return
        switched = diagnosis.observed.all("anomaly_on")
        yield Found(
            summary="anomaly detection is on while training",
            todo="remove it, or turn it on only while you look for a NaN",
            evidence=(
                f"an iteration takes {milliseconds(what_if.before)} with it and "
                f"{milliseconds(what_if.after)} without",
            ),
            place=switched[0].place if switched else None,
            cost=what_if.gain,
        )
