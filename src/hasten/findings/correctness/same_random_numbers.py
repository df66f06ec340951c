"""All workers of a loader draw the same random numbers.

What it is
    A random generator is copied to each worker with the dataset, or is seeded by the same number
    in each: `self.rng = numpy.random.default_rng(0)`, or a `worker_init_fn` that calls
    `numpy.random.seed` with a constant. (torch seeds its own, Python's and numpy's global
    generators differently in each worker since 1.9.)

Why it costs
    Augmentations repeat in step: with eight workers there is an eighth of the variety that was
    meant. Workers that are started anew for each epoch also repeat those of the epoch before.

How it is measured
    One item is fetched again and again by two workers of a pool of hasten's own, started as the
    script's are. Its values change from draw to draw, both workers' draws are equal to the bit,
    and the generator that is named moved from the same state to the same state in both. Items
    that are seeded by their index, and generators that are seeded from `get_worker_info().seed`,
    are not that.

What to do
    Make the generator in the worker: in `worker_init_fn` or at the first item, from
    `torch.utils.data.get_worker_info().seed`.

Source
    torch.utils.data, "Randomness in multi-process data loading"; pytorch#5059.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, Kind
from hasten.findings.correctness._places import several, told


class SameRandomNumbers(Finding):
    """Workers that draw in step."""

    name: ClassVar[str] = "same-random-numbers"
    subject: ClassVar[str] = "correctness"
    kind: ClassVar[Kind] = Kind.WRONG

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Generators that were in the same state in two workers."""
        same = diagnosis.observed.facts.get("streams", {}).get("random", ())
        if not same:
            return
        names = [one["generator"] for one in same]
        loader = diagnosis.profile.loader
        workers = f"all {loader.workers} workers" if loader is not None else "all workers"
        yield Found(
            summary=f"{workers} draw the same random numbers from {several(names)}",
            todo="make the generator in the worker, from torch.utils.data.get_worker_info().seed",
            evidence=(
                "one item, fetched 16 times by each of two workers, changed from draw to draw, "
                "and was the same in both workers each time",
            ),
            place=told(same[0]["place"]),
        )
