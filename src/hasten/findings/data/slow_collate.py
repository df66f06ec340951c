"""Putting items together into a batch takes much of the time that the loop waits for data.

What it is
    The collate function is a large part of making a batch.

Why it costs
    It runs for each batch, in one process, and often item by item in Python.

How it is measured
    Batches are made in one process, items and collating timed apart; its share is taken of
    what free data was measured to save.

What to do
    Pad or stack with one tensor operation; give `__getitems__` to the dataset; pass arrays,
    not lists of numbers.

Source
    PyTorch documentation of `collate_fn`; torch issue tracker on default_collate over Python
    numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import (
    Diagnosis,
    Finding,
    Found,
    data_gain,
    data_measured,
    milliseconds,
    percent,
    place_from,
)

_SHARE = 0.3  # of making a batch
_BOUND = 0.1  # of an iteration that free data must save
_COST = 0.05  # of an iteration
_TORCHS = 5e-4  # seconds a batch that torch's own takes as well: not worth a change


class SlowCollate(Finding):
    """A collate function that items wait for."""

    name: ClassVar[str] = "slow-collate"
    subject: ClassVar[str] = "data"

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """The loop is bound by data, and much of it is collating."""
        loader, gain = diagnosis.examined.loader, data_gain(diagnosis, _BOUND)
        if loader is None or not loader.fetch or loader.collate is None:
            return
        share = loader.collate / loader.fetch
        if share < _SHARE or share * gain < _COST * diagnosis.iteration:
            return
        if loader.collate < _TORCHS:
            return
        made = diagnosis.observed.facts.get("loaders", {}).get("made")
        yield Found(
            summary=f"collating is {percent(share)} of making a batch",
            todo="stack or pad with one tensor operation instead of item by item",
            evidence=(
                f"{milliseconds(loader.collate)} of the {milliseconds(loader.fetch)} that a "
                "batch takes in one process",
                f"free data would save {milliseconds(gain)} an iteration",
            ),
            place=loader.collate_place or place_from(made),
            cost=share * gain,
            of=data_measured(diagnosis),
        )
