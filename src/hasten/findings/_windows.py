"""Accumulation windows in the facts of their observer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from hasten.findings.base import Diagnosis

LEAST = 4  # windows that were seen
_ALIKE = 0.5  # of those without an epoch's border inside
_SURE = 0.8  # of the whole windows, for what is said of all of them


def accumulating(diagnosis: Diagnosis) -> Iterator[tuple[dict[str, Any], int]]:
    """The optimizers that step once in several batches, and how many these are."""
    facts = diagnosis.observed.facts.get("accumulation", {})
    for optimizer in facts.get("optimizers", ()):
        inside = [w["batches"] for w in optimizer["windows"] if w["fresh"] is None]
        if len(inside) < LEAST:
            continue
        size, count = Counter(inside).most_common(1)[0]
        if size > 1 and count >= _ALIKE * len(inside):
            yield optimizer, size


def at_each_batch(optimizer: dict[str, Any], size: int, what: str) -> tuple[int, int] | None:
    """In how many whole windows `what` is counted at each batch, and of how many; None: in few."""
    windows = [w for w in optimizer["windows"] if w["batches"] == size]
    often = sum(w[what] >= size for w in windows)
    return (often, len(windows)) if often >= _SURE * len(windows) else None
