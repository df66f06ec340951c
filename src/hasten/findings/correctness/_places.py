"""Places in the facts of observers, which travel as plain data."""

from __future__ import annotations

from typing import Any

from hasten.diagnosis import Event, Observed, Place


def told(place: dict[str, Any] | None) -> Place | None:
    """A place as an observer told it."""
    return Place(**place) if place is not None else None


def last_before(observed: Observed, kind: str, before: str, subject: str) -> Event | None:
    """The event of a kind that comes last before another one, in most iterations.

    Args:
        observed: with the order of events.
        kind: of the event that is looked for.
        before: the kind of the other one.
        subject: whom the other one is about.
    """
    counts: dict[int, int] = {}
    for moments in (*observed.opening, *observed.sequences):
        last: int | None = None
        for moment in moments:
            if moment.kind == kind:
                last = moment.event
            elif moment.kind == before and moment.subject == subject and last is not None:
                counts[last] = counts.get(last, 0) + 1
    if counts:
        return observed.events[max(counts, key=lambda index: counts[index])]
    events = observed.all(kind)
    return events[0] if events else None


def several(names: list[str]) -> str:
    """A few names for one line."""
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
