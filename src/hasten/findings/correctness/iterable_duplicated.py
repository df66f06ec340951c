"""Each worker of a loader reads the whole IterableDataset: every sample comes several times.

What it is
    An IterableDataset is copied to each worker process, and each copy yields everything unless
    its `__iter__` takes its own part.

Why it costs
    An epoch is as many times too long as there are workers, and the same samples follow one
    another: batches are less varied than they look, and validation counts samples several times.

How it is measured
    Torch takes batches from the workers in turn. The first batches of every worker are equal to
    the bit, one after another, while they differ within a worker.

What to do
    In `__iter__`, ask `torch.utils.data.get_worker_info()` and yield every
    `num_workers`-th sample beginning with `id`.

Source
    torch.utils.data.IterableDataset, example 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, Kind
from hasten.findings.correctness._places import told


class IterableDuplicated(Finding):
    """Samples that come once from each worker."""

    name: ClassVar[str] = "iterable-duplicated"
    subject: ClassVar[str] = "correctness"
    kind: ClassVar[Kind] = Kind.WRONG

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Loaders whose workers gave the same batches."""
        for one in diagnosis.observed.facts.get("streams", {}).get("iterable", ()):
            if one["same"]:
                yield Found(
                    summary=f"each of {one['workers']} workers reads all of {one['dataset']}: "
                    f"every sample comes {one['workers']} times",
                    todo="in __iter__, take every num_workers-th sample, from "
                    "get_worker_info().id on",
                    evidence=(
                        f"the first {one['rounds']} batches of each worker are equal to the bit",
                    ),
                    place=told(one["place"]),
                )
