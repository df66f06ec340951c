"""The memory of loader workers grows while an epoch goes on.

What it is
    Bytes that are private to the workers become more with every batch.

Why it costs
    Reading Python objects changes their reference counts, so that memory which was shared
    after the fork is copied page by page into each worker, until the machine has none left.

How it is measured
    `Private_Dirty` of all workers, about once a second within one epoch. It costs no time
    until the run dies, so no time is claimed.

What to do
    Keep what items are made of in numpy arrays or tensors instead of lists and dicts of
    Python objects.

Source
    PyTorch issue 13246 and the warning in the documentation of `torch.utils.data`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, Kind, place_from

_STEADY = 0.6  # of what the first looks rose the last ones rise, too
_LOOKS = 5
_GROWTH = 24 * 2**20  # bytes of all workers together within one epoch
_SHARE = 0.3  # of what was there at the first look
_MIB = 2**20


class WorkerMemoryGrowth(Finding):
    """Workers that copy what they read."""

    name: ClassVar[str] = "worker-memory-growth"
    subject: ClassVar[str] = "memory"
    kind: ClassVar[Kind] = Kind.RISK

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Some epoch in which private memory grew at every look, and by much."""
        facts = diagnosis.observed.facts.get("loaders", {})
        grown = [looks for looks in facts.get("worker_memory", []) if _grows(looks)]
        if not grown:
            return
        looks = max(grown, key=lambda seen: seen[-1] - seen[0])
        yield Found(
            summary="the memory of the loader's workers grows through the epoch",
            todo="keep the dataset's items in numpy arrays or tensors, not in Python objects",
            evidence=(
                f"private memory of the workers: {looks[0] // _MIB} MiB, then "
                f"{looks[-1] // _MIB} MiB, in {len(looks)} looks about a second apart",
            ),
            place=place_from(facts.get("made")),
        )


def _grows(looks: list[int]) -> bool:
    if len(looks) < _LOOKS:
        return False
    rises = sum(later > earlier for earlier, later in itertools.pairwise(looks))
    growth = looks[-1] - looks[0]
    if rises < 0.7 * (len(looks) - 1) or growth <= max(_GROWTH, _SHARE * looks[0]):
        return False
    # A worker that begins touches its pages for the first time, which slows down soon.
    half = (len(looks) - 1) // 2
    return looks[-1] - looks[-1 - half] >= _STEADY * (looks[half] - looks[0])
