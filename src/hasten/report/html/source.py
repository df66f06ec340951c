"""The user's source around a line, as it is now."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hasten.diagnosis import Place

_AROUND = 3  # lines before and after
_WIDE = 400  # columns of a line that are shown
_LARGEST = 4 * 2**20  # bytes of a file that is read


@dataclass(frozen=True)
class Line:
    """One line of source; `here`: the one that is meant."""

    number: int
    text: str
    here: bool = False


@dataclass(frozen=True)
class Excerpt:
    """Some lines of a file."""

    name: str  # as a person would type it
    function: str
    lines: tuple[Line, ...]


def excerpt(place: Place | None) -> Excerpt | None:
    """The lines round a place; its own code alone where the file has changed or can't be read."""
    if place is None:
        return None
    relative = os.path.relpath(place.file)
    name = place.file if relative.startswith("..") else relative
    lines = _around(place)
    if not lines and place.code:
        lines = (Line(place.line, place.code[:_WIDE], True),)
    return Excerpt(f"{name}:{place.line}", place.function, lines)


def _around(place: Place) -> tuple[Line, ...]:
    try:
        if os.path.getsize(place.file) > _LARGEST:
            return ()
        text = Path(place.file).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return ()
    found = text.splitlines()
    at = place.line - 1
    if not 0 <= at < len(found) or (place.code and found[at].strip() != place.code.strip()):
        return ()
    first, last = max(0, at - _AROUND), min(len(found), at + _AROUND + 1)
    if found[at][:1].isspace():  # what comes after its function says nothing of it
        outer = (i for i in range(at + 1, last) if found[i].strip() and not found[i][0].isspace())
        last = next(outer, last)
    while first < at and not found[first].strip():
        first += 1
    while last - 1 > at and not found[last - 1].strip():
        last -= 1
    return tuple(_lines(found, first, last, at))


def _lines(found: list[str], first: int, last: int, at: int) -> list[Line]:
    """Without the space that all of them begin with."""
    shown = [line.expandtabs(4) for line in found[first:last]]
    margin = min((len(s) - len(s.lstrip()) for s in shown if s.strip()), default=0)
    return [
        Line(first + index + 1, line[margin : margin + _WIDE], first + index == at)
        for index, line in enumerate(shown)
    ]
