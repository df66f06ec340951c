"""Accumulation windows in the facts of their observer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from hasten.findings.base import Diagnosis

LEAST = 4  # windows that were seen
_ALIKE = 0.5  # of those without an epoch's border inside


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
