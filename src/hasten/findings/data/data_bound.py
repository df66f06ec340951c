"""The loop waits for data.

What it is
    An iteration would be much shorter if its batch were there at once.

Why it costs
    The model stands still while a batch is read, transformed and collated.

How it is measured
    Blocks in which the same recorded batch is handed out again take turns with blocks as the
    script is. What is saved is the cost; what holds the data up is named by other findings.

What to do
    See the findings below it: workers, transforms, collating.

Source
    NVIDIA, deep learning performance guide: overlap loading with computing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import (
    Diagnosis,
    Finding,
    Found,
    Kind,
    data_gain,
    data_measured,
    milliseconds,
    percent,
    place_from,
)

_SHARE = 0.1  # of an iteration that must be saved


class DataBound(Finding):
    """Data holds the loop back."""

    name: ClassVar[str] = "data-bound"
    subject: ClassVar[str] = "data"
    kind: ClassVar[Kind] = Kind.LIMIT
    fixed_by: ClassVar[tuple[str, ...]] = ("loader-workers",)

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """The loop is surely faster with data free."""
        free = diagnosis.ceilings.data_free
        gain = data_gain(diagnosis, _SHARE)
        if free is None or not gain:
            return
        loader = diagnosis.examined.loader
        evidence = [
            f"{milliseconds(free.before)} an iteration, {milliseconds(free.after)} with data free",
            f"{percent(diagnosis.phase('data') / max(1e-9, diagnosis.iteration))} of an iteration "
            "is waiting for data",
        ]
        if loader is not None and loader.alone is not None:
            evidence.append(f"the loader alone makes a batch every {milliseconds(loader.alone)}")
        yield Found(
            summary="the loop waits for data",
            todo="make batches faster or beside the training; the findings on data say where",
            evidence=tuple(evidence),
            place=place_from(diagnosis.observed.facts.get("loaders", {}).get("iterated")),
            cost=gain,
            of=data_measured(diagnosis),
        )
