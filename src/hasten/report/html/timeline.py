"""Typical iterations as lanes: the main process, its workers, the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from hasten.diagnosis import Span, Timeline
from hasten.report.html.svg import milliseconds, number, percent, tag, ticks

_HEIGHT = 34
_NARROW = 18
_LABELLED = 0.075  # of the width: a stretch that is this wide has its name in it
_WORKERS = 16  # lanes
_JOINED = 0.0008  # of the width: what is nearer together is one stretch

NAMES = {
    "data": "data wait",
    "copy": "copies",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer step",
    "other": "other",
    "batch": "makes a batch",
    "busy": "busy",
}
_SHORT = {"optimizer": "optimizer", "batch": "batch", "data": "wait"}


@dataclass(frozen=True)
class Lane:
    """One row: its name, its picture, and the same in words."""

    name: str
    picture: Markup
    words: str


@dataclass(frozen=True)
class Tick:
    """A mark of an axis.

    Attributes:
        at: where, as a CSS length.
        text: what it says.
        side: "start" or "end" where its text would stick out of the axis.
    """

    at: str
    text: str
    side: str = ""


def tick(share: float, text: str) -> Tick:
    """A mark at a share of the length."""
    return Tick(percent(share), text, "start" if share < 0.03 else "end" if share > 0.97 else "")


@dataclass(frozen=True)
class Lanes:
    """A timeline as a page shows it."""

    lanes: tuple[Lane, ...]
    ticks: tuple[Tick, ...]
    borders: tuple[str, ...]
    iterations: int
    seconds: float
    missing: tuple[str, ...]
    legend: tuple[tuple[str, str], ...]


def lanes(timeline: Timeline | None) -> Lanes | None:
    """What a page shows of a timeline; None where there is nothing to show."""
    if timeline is None or len(timeline.borders) < 2 or timeline.borders[-1] <= 0:
        return None
    total = timeline.borders[-1]
    names = _ordered({span.lane for span in timeline.spans})
    rows = tuple(_lane(name, timeline, total) for name in names[: _WORKERS + 2])
    missing = [f"{lane}: {why}" for lane, why in timeline.missing.items()]
    if len(names) > len(rows):
        missing.append(f"{len(names) - len(rows)} more workers are not shown")
    used = {span.what for span in timeline.spans}
    return Lanes(
        lanes=rows,
        ticks=tuple(_axis(total)),
        borders=tuple(percent(at / total) for at in timeline.borders),
        iterations=len(timeline.borders) - 1,
        seconds=total,
        missing=tuple(missing),
        legend=tuple((what, name) for what, name in NAMES.items() if what in used),
    )


def _ordered(names: set[str]) -> list[str]:
    def key(name: str) -> tuple[int, int]:
        kind, _, index = name.partition(" ")
        place = {"main": 0, "worker": 1, "device": 2}.get(kind, 3)
        return place, int(index) if index.isdigit() else 0

    return sorted(names, key=key)


def _lane(name: str, timeline: Timeline, total: float) -> Lane:
    spans = _joined([span for span in timeline.spans if span.lane == name], total)
    height = _HEIGHT if name == "main" else _NARROW
    parts = [part for span in spans for part in _stretch(span, total, height)]
    for at in (percent(border / total) for border in timeline.borders[1:-1]):
        parts.append(tag("line", x1=at, x2=at, y1=0, y2=height, class_="border"))
    shown = {"main": "main process"}.get(name, name)
    words = _words(shown, spans, len(timeline.borders) - 1)
    picture = tag(
        "svg", *parts, class_="lane", width="100%", height=height, role="img", aria_label=words
    )
    return Lane(shown, picture, words)


def _joined(spans: list[Span], total: float) -> list[Span]:
    """Stretches of the same kind without a gap that can be seen are one."""
    joined: list[Span] = []
    for span in sorted(spans, key=lambda s: s.begin):
        last = joined[-1] if joined else None
        near = last is not None and span.begin - last.end < _JOINED * total
        if last is not None and near and last.what == span.what != "batch":
            joined[-1] = Span(last.lane, last.what, last.begin, max(last.end, span.end))
        else:
            joined.append(span)
    return joined


def _stretch(span: Span, total: float, height: int) -> Iterator[Markup]:
    width = (span.end - span.begin) / total
    place = {"x": percent(span.begin / total), "width": percent(width), "height": height}
    words = f"{NAMES.get(span.what, span.what)}, {milliseconds(span.end - span.begin)}"
    kind = span.what if span.what in NAMES else "other"
    yield tag("rect", tag("title", words), class_=f"p p-{kind}", y=0, **place)
    if span.what == "data":
        yield tag("rect", class_="hatched", y=0, fill="url(#hatch)", **place)
    if width >= _LABELLED and height == _HEIGHT:
        middle = percent((span.begin + span.end) / 2 / total)
        wide = "inside" if width >= 2.5 * _LABELLED else "inside roomy"
        text = _SHORT.get(span.what, span.what)
        yield tag("text", text, x=middle, y=height / 2, class_=wide, aria_hidden="true")


def _words(name: str, spans: list[Span], iterations: int) -> str:
    spent: dict[str, float] = {}
    for span in spans:
        spent[span.what] = spent.get(span.what, 0.0) + span.end - span.begin
    parts = [
        f"{NAMES.get(what, what)} {milliseconds(seconds / iterations)}"
        for what, seconds in sorted(spent.items(), key=lambda item: -item[1])
    ]
    return f"{name}, an iteration: {', '.join(parts)}"


def _axis(total: float) -> Iterator[Tick]:
    for at in ticks(0.0, 1000 * total):
        share = at / (1000 * total)
        yield tick(share, f"{number(at)} ms" if at else "0")
