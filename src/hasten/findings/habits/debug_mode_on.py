"""Anomaly detection or a profiler is left on.

What it is
    `torch.autograd.set_detect_anomaly(True)` records where every operation came from and looks
    for NaN in every gradient; `torch.profiler` records every operation.

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

from hasten.findings.base import Diagnosis, Finding, Found, gained, milliseconds
from hasten.records import Setting


class DebugModeOn(Finding):
    """Debugging aids that are on in the training loop."""

    name: ClassVar[str] = "debug-mode-on"
    subject: ClassVar[str] = "habits"
    fixed_by: ClassVar[tuple[str, ...]] = ("debug-off",)

    def what_if(self, diagnosis: Diagnosis) -> Setting | None:
        """Off, what is on: a profiler pauses, as the unit has it."""
        setting: Setting = {}
        if _anomaly(diagnosis):
            setting["relief:anomaly"] = True
        if "profiler" in diagnosis.profile.debug:
            setting["debug-off"] = ["profiler"]
        return setting or None

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """The switch is on and turning it off is faster."""
        what_if = gained(diagnosis, self.name)
        if what_if is None:
            return
        profiler = "profiler" in diagnosis.profile.debug
        aids = ["anomaly detection"] * _anomaly(diagnosis) + ["a profiler"] * profiler
        what, kind = " and ".join(aids), "anomaly_on" if _anomaly(diagnosis) else "profiler"
        switched = [e for e in diagnosis.observed.events if e.kind == kind and e.place]
        yield Found(
            summary=f"{what} {'are' if len(aids) > 1 else 'is'} on while training",
            todo="remove it, or turn it on only while you look for something",
            evidence=(
                f"an iteration takes {milliseconds(what_if.before)} with it and "
                f"{milliseconds(what_if.after)} without",
            ),
            place=switched[0].place if switched else None,
            cost=what_if.gain,
        )


def _anomaly(diagnosis: Diagnosis) -> bool:
    return bool(diagnosis.observed.facts.get("switches", {}).get("anomaly"))
