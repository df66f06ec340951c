"""Batches are made in the training process, which stands still meanwhile.

What it is
    The training loader has `num_workers=0`.

Why it costs
    Reading, transforming and collating take turns with computing instead of running beside
    it.

How it is measured
    Blocks with worker processes take turns with blocks as the script is.

What to do
    `DataLoader(..., num_workers=2, persistent_workers=True)`; not more workers than free
    cores.

Source
    PyTorch performance tuning guide, "Enable asynchronous data loading and augmentation".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import (
    Diagnosis,
    Finding,
    Found,
    gained,
    milliseconds,
    percent,
    place_from,
)
from hasten.records import Setting

_WAITS = 0.1  # of an iteration must be waiting before workers are tried
_MOST = 4  # workers that are tried
_GAIN = 0.05  # of an iteration


class NoWorkers(Finding):
    """A loader without workers in a loop that waits for it."""

    name: ClassVar[str] = "no-workers"
    subject: ClassVar[str] = "data"
    fixed_by: ClassVar[tuple[str, ...]] = ("loader-workers",)

    def what_if(self, diagnosis: Diagnosis) -> Setting | None:
        """Some workers, where the loop waits for data and has none."""
        loader = diagnosis.profile.loader
        if loader is None or not loader.owned or loader.workers:
            return None
        if diagnosis.phase("data") < _WAITS * diagnosis.iteration:
            return None
        workers = max(1, min(_MOST, diagnosis.environment.cores))
        return {"loader-workers": {"workers": workers, "prefetch": 2, "persistent": False}}

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Workers make it surely faster."""
        what_if = gained(diagnosis, self.name)
        if what_if is None or what_if.gain < _GAIN * what_if.before:
            return
        workers = max(1, min(_MOST, diagnosis.environment.cores))
        waits = diagnosis.phase("data") / max(1e-9, diagnosis.iteration)
        yield Found(
            summary="batches are made while the training waits: the loader has no workers",
            todo=f"DataLoader(..., num_workers={workers}, persistent_workers=True)",
            evidence=(
                f"{percent(waits)} of an iteration is waiting for data",
                f"{milliseconds(what_if.before)} an iteration, {milliseconds(what_if.after)} with "
                f"{workers} worker{'s' if workers > 1 else ''}",
            ),
            place=place_from(diagnosis.observed.facts.get("loaders", {}).get("made")),
            cost=what_if.gain,
        )
