"""What would be saved by computing something in another way, from times taken in turns."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hasten.diagnosis import Place
from hasten.findings.base import Diagnosis, place_from
from hasten.statistics.turns import saved


@dataclass(frozen=True)
class Saving:
    """At one line of the user's, or of a library.

    Attributes:
        cost: seconds an iteration that the other way surely saves.
        faster: how many times as fast the other way is.
        times: how often it is computed in an iteration.
        entries: the facts, see observe/alternatives.py.
    """

    place: Place | None
    library: str
    cost: float
    faster: float
    times: int
    entries: Sequence[dict[str, Any]]


def savings(diagnosis: Diagnosis, kind: str, least: float) -> Iterator[Saving]:
    """Lines at which the other way surely saves at least this share of an iteration."""
    lines: dict[Any, list[dict[str, Any]]] = {}
    for entry in diagnosis.examined.facts.get(kind, ()):
        place = entry["place"] or {}
        at = place.get("file"), place.get("line"), entry["library"]
        if saved(entry["as_is"], entry["instead"]).low > 0:
            lines.setdefault(at, []).append(entry)
    for entries in lines.values():
        one = _saving(diagnosis, entries)
        if one.cost >= least * diagnosis.iteration:
            yield one


def _saving(diagnosis: Diagnosis, entries: list[dict[str, Any]]) -> Saving:
    gain = sum(saved(one["as_is"], one["instead"]).median for one in entries)
    before = sum(statistics.median(one["as_is"]) for one in entries)
    spent = diagnosis.phase("forward") + diagnosis.phase("backward")
    # It was timed alone: no more can be saved than the share of what the loop spends.
    cost = min(gain * wall(diagnosis), spent * gain / before)
    return Saving(
        place_from(entries[0]["place"]),
        entries[0]["library"],
        cost,
        before / max(1e-12, before - gain),
        sum(one["times"] for one in entries),
        entries,
    )


def wall(diagnosis: Diagnosis) -> float:
    """Seconds that go by for each processor second of forward and backward; 1 on a device."""
    seen = diagnosis.observed
    used = sum(seen.processor_phases[n].mean for n in _WHERE if n in seen.processor_phases)
    if diagnosis.profile.device != "cpu" or used <= 0:
        return 1.0
    return sum(diagnosis.phase(name) for name in _WHERE) / used


_WHERE = ("forward", "backward")
