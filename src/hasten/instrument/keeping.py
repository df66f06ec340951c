"""Kept items (`cache-items`) in the programs: how they are measured, proven and applied.

In an epoch every item is asked for once. A block that only let items be kept as they come would
see none of them twice, and nothing of what keeping is for; one that went over the same few items
again would see them warmer than any epoch does. So before a block the items of its own batches,
whose turn it is in the script's order, are computed and kept by forked copies of the process,
while the loop stands still and nothing is counted. The block then does what every iteration of
every later epoch does: each item is read once, from where it was kept, with everything else that
the script computes in between. What it costs to get there is told apart: the first epoch gains
nothing (`BlockDone.fill_iterations`), and keeping adds to it (`BlockDone.fill_seconds`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.environment import usable_cores
from hasten.instrument.fingerprint import of_loader
from hasten.records import LoaderFacts, Setting

if TYPE_CHECKING:
    from hasten.instrument.loop import LoopSeams
    from hasten.instrument.recorder import Iteration
    from hasten.instrument.seams.loader_keeping import Caches

UNIT = "cache-items"
_MATTERS = 0.03  # of an iteration is waited for data, or nobody looks at items


@functools.cache
def _cores() -> int:
    return max(1, int(usable_cores(os.cpu_count() or 1, Path("/"), os.environ)[0]))


def fill(seams: LoopSeams, iterations: int) -> int:
    """Keep what the next iterations and the workers ahead of them will ask for.

    Returns:
        Iterations that don't count now, since the loop has stood still while workers went on; 0
        when nothing was missing.
    """
    loader = seams.loader
    if loader is None or UNIT not in seams.setting:
        return 0
    missing = loader.items.fill(iterations + loader.in_flight + 1, _cores())
    return 1 + loader.in_flight if missing else 0


def cost(seams: LoopSeams, setting: Setting) -> dict[str, Any]:
    """What a block tells of filling, as fields of `BlockDone`."""
    if UNIT not in setting or seams.loader is None:
        return {}
    seconds, kept = seams.loader.items.filling()
    length = seams.loader.facts().length
    return {"fill_seconds": seconds, "fill_iterations": length or 0} if kept else {}


def with_items(
    seams: LoopSeams, facts: LoaderFacts | None, seen: Sequence[Iteration]
) -> LoaderFacts | None:
    """The loader's facts, with those of its items where the loop was seen to wait for data."""
    if facts is None or not seen or seams.loader is None or not facts.owned:
        return facts
    waited = sum(iteration.phases[0] for iteration in seen)
    if waited < _MATTERS * sum(iteration.seconds for iteration in seen):
        return facts
    return replace(facts, items=seams.loader.items.facts())


def prove(seams: LoopSeams) -> tuple[str, str]:
    """Items made from what was kept equal those made anew, and so does what is random after.

    Returns:
        Why not, and the first value that differs; empty: they do.
    """
    assert seams.loader is not None
    seen = seams.loader.items.prove()
    worst = "" if isinstance(seen, str) else seen.worst
    if isinstance(seen, str):
        reason = seen
    elif worst:
        reason = "items differ"
    else:
        reason = "" if seen.hits else "no item could be kept"
    return reason, worst


def ahead(caches: Caches, setting: Setting, expected: dict[str, str]) -> None:
    """In the real training: keep items in files, too, and from the first batch on.

    A loader's own workers are started before the loop is recognised. The plan says what the
    training loader looks like, so items can be kept from its first epoch on, by the script's own
    workers and with their own random streams.
    """
    caches.files = True
    if UNIT in setting:
        caches.early = setting[UNIT]
        caches.matches = lambda facts: of_loader(facts) == expected.get("loader")
