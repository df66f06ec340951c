"""One transform takes most of the time that the loop waits for data.

What it is
    A class of transforms, or one line of the dataset's code, is most of what making a batch
    takes.

Why it costs
    The loop waits for batches, and this is what they wait for.

How it is measured
    Batches are made in one process and timed by class and by the user's line; its share is
    taken of what free data was measured to save.

What to do
    Do it once and keep the result, do it on the batch instead of each item, or use a faster
    implementation.

Source
    PyTorch, torchvision transforms v2: performance considerations.
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
)

_SHARE = 0.4  # of making a batch
_BOUND = 0.1  # of an iteration that free data must save
_COST = 0.05  # of an iteration


class SlowTransform(Finding):
    """What making a batch waits for."""

    name: ClassVar[str] = "slow-transform"
    subject: ClassVar[str] = "data"

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """The loop is bound by data, and one class is most of it."""
        loader, gain = diagnosis.examined.loader, data_gain(diagnosis, _BOUND)
        if loader is None or not loader.fetch or not loader.transforms:
            return
        slowest = loader.transforms[0]
        share = min(1.0, slowest.seconds / loader.fetch)
        if share < _SHARE or share * gain < _COST * diagnosis.iteration:
            return
        yield Found(
            summary=f"{slowest.name} is {percent(share)} of making a batch",
            todo="keep its result, do it on the whole batch, or use a faster implementation",
            evidence=(
                f"{milliseconds(slowest.seconds)} of the {milliseconds(loader.fetch)} that a "
                "batch takes in one process",
                f"free data would save {milliseconds(gain)} an iteration",
            ),
            place=slowest.place or loader.item_place,
            cost=share * gain,
            of=data_measured(diagnosis),
        )
