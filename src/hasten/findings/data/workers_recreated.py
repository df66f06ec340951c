"""Workers are started anew for every epoch.

What it is
    The training loader has workers and not `persistent_workers=True`, and epochs are short.

Why it costs
    At each epoch's start processes are forked (or spawned, and import everything again), and
    the first batch has to be made while everybody waits; at its end the loop waits until they
    are gone.

How it is measured
    The time from the start of each epoch but the first to its first batch, less a usual wait
    for data, and that in which the loop learns that there is no further batch; shared out over
    the iterations of an epoch.

What to do
    `DataLoader(..., persistent_workers=True)`, unless the dataset changes between epochs.

Source
    PyTorch documentation of `persistent_workers`; mmpretrain issue 196.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, milliseconds, place_from

_EPOCHS = 2  # starts of epochs that must have been seen; the first is over by then


class WorkersRecreated(Finding):
    """Pools of workers that don't outlive their epoch."""

    name: ClassVar[str] = "workers-recreated"
    subject: ClassVar[str] = "data"
    fixed_by: ClassVar[tuple[str, ...]] = ("loader-workers",)

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Epochs begin with a wait that is long for the length of an epoch."""
        loader, facts = diagnosis.profile.loader, diagnosis.observed.facts.get("loaders", {})
        waits, epoch = facts.get("first_waits", []), diagnosis.profile.iterations_per_epoch
        if loader is None or not loader.workers or loader.persistent or not epoch:
            return
        if len(waits) < _EPOCHS:
            return
        usual = diagnosis.observed.phases["data"].median
        start = max(0.0, median(waits) - usual)
        end = median(facts.get("last_waits") or [0.0])
        yield Found(
            summary="workers are started anew in every epoch",
            todo="DataLoader(..., persistent_workers=True), unless epochs change the dataset",
            evidence=(
                f"an epoch of {epoch} iterations begins with {milliseconds(median(waits))} until "
                f"its first batch, and ends with {milliseconds(end)}; seen {len(waits)} times",
            ),
            place=place_from(facts.get("made")),
            cost=(start + end) / epoch,
        )
