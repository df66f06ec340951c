"""The memory of the training process grows with every iteration.

What it is
    The process keeps something of each iteration: outputs that are collected, a list that is
    never emptied, a cache without a limit.

Why it costs
    The run ends out of memory, hours later. Until then nothing is slower, so no time is claimed.

How it is measured
    Bytes that are the process's own (no file's, not shared), from iteration to iteration. Only
    growth that goes on at the same pace counts, and in a loop that makes its batches itself only
    after the first epoch: until then a data set may fill a cache. Graphs that are kept are found
    by `graph-kept`. A container of yours must get longer with every iteration; it is named.

What to do
    Keep numbers instead of tensors, or write out what is collected and empty the list.

Source
    PyTorch FAQ, "My model reports cuda runtime error(2): out of memory".
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, Kind, place_from

_PARTS = 6  # of the time that was observed, beginning after its first third
_LEAST = 8 * 2**20  # bytes in that time
_EACH = 4096  # bytes an iteration
_STEADY = 0.5  # of the growth in the first half must be there in the second
_DIP = 0.1  # of all growth that may be given back from one part to the next
_MIB = 2**20


class MemoryGrowth(Finding):
    """Something of every iteration is kept."""

    name: ClassVar[str] = "memory-growth"
    subject: ClassVar[str] = "memory"
    kind: ClassVar[Kind] = Kind.RISK

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Private memory grows steadily, and neither graphs nor a first epoch explain it."""
        facts = diagnosis.observed.facts
        seen = facts.get("growth", {})
        if "held_by" in facts.get("graphs", {}) or _first_epoch(diagnosis):
            return
        each = growth(seen.get("iterations", ()), seen.get("private", ()))
        holder = seen.get("held_by", "")
        if each < _EACH or not holder:  # growth that nothing of the script's explains may be ours
            return
        thousand = f"{1000 * each / _MIB:,.0f} MiB in a thousand"
        yield Found(
            summary=f"{holder} gets longer with every iteration, by {thousand}",
            todo="keep numbers (.item()) instead of tensors, or empty it now and then",
            evidence=(
                f"private memory went from {seen['private'][0] // _MIB} to "
                f"{seen['private'][-1] // _MIB} MiB in "
                f"{seen['iterations'][-1] - seen['iterations'][0]} iterations, steadily",
            ),
            place=place_from(seen.get("place")),
        )


def _first_epoch(diagnosis: Diagnosis) -> bool:
    """Whether a data set of this process may still be filling a cache."""
    loader = diagnosis.profile.loader
    if loader is None or loader.workers:
        return False
    return not any(s.what == "epoch border" and s.count for s in diagnosis.observed.stretches)


def growth(iterations: Sequence[int], private: Sequence[int]) -> float:
    """Bytes an iteration, where memory grows steadily; otherwise 0.

    Args:
        iterations: at which the memory was looked at.
        private: bytes.
    """
    start = len(private) // 3
    counts, sizes = iterations[start:], private[start:]
    each = len(sizes) // _PARTS
    if each < 2:
        return 0.0
    levels = [statistics.median(sizes[i * each : (i + 1) * each]) for i in range(_PARTS)]
    early, late = levels[_PARTS // 2] - levels[0], levels[-1] - levels[_PARTS // 2]
    total = levels[-1] - levels[0]
    dips = any(later < earlier - _DIP * total for earlier, later in pairwise(levels))
    if dips or total < _LEAST or late < _STEADY * early:
        return 0.0
    return (sizes[-1] - sizes[0]) / max(1, counts[-1] - counts[0])
