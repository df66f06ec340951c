"""Bars, ratios with their intervals, and curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from hasten.records import Tried
from hasten.report.html.svg import number, path, percent, ratio_ticks, tag, ticks
from hasten.report.html.timeline import Tick, tick

#: Of each verdict: the class that colours it, and the shape that says the same.
VERDICTS = {
    "faster": ("faster", "M0-6 6 5-6 5z"),
    "slower": ("slower", "M0 6 6-5-6-5z"),
    "no difference": ("same", "M-5-5H5V5H-5z"),
    "cannot tell": ("unsure", "M0-5a5 5 0 1 0 .01 0z"),
    "refused": ("refused", "M-5-5 5 5M5-5-5 5"),
    "failed": ("refused", "M-5-5 5 5M5-5-5 5"),
}
_WIDEST = 2.5  # how far beyond the best and worst ratio a scale goes for intervals
_LEAST = 1.15  # a scale reaches at least this far to both sides of 1
_MARGIN = 0.03  # of a scale on both sides, for marks at its ends
_BOX = 1000.0  # units of a curve's own coordinates
_POINTS = 400  # of a curve


# --- bars --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bar:
    """One row of bars.

    Attributes:
        name: what it is of.
        share: of the longest, 0 to 1.
        value: the figure in words.
        kind: class of the colour.
        more: a further figure in words.
        note: a line below.
        start: where the bar begins, 0 to 1.
    """

    name: str
    share: float
    value: str
    kind: str = "bar"
    more: str = ""
    note: str = ""
    start: float = 0.0

    @property
    def picture(self) -> Markup:
        """The bar; its figure stands beside it, so that it needs no words."""
        place = {"x": percent(self.start), "width": percent(self.share), "height": 16}
        parts = [
            tag("rect", class_="track", width="100%", height=16, rx=3),
            tag("rect", class_=f"p p-{self.kind}", rx=3, **place),
        ]
        if self.kind == "data":
            parts.append(tag("rect", class_="hatched", rx=3, fill="url(#hatch)", **place))
        return tag("svg", *parts, class_="bar", width="100%", height=16, aria_hidden="true")


# --- ratios ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """A logarithmic scale of ratios."""

    low: float
    high: float

    def at(self, ratio: float) -> float:
        """The position of a ratio, 0 to 1; outside of the scale: its end."""
        if ratio <= self.low:
            return 0.0
        if ratio >= self.high:
            return 1.0
        return math.log(ratio / self.low) / math.log(self.high / self.low)

    @property
    def ticks(self) -> list[Tick]:
        """Round ratios on it."""
        return [
            tick(self.at(r), f"{number(round(r, 2))}\u00d7")
            for r in ratio_ticks(self.low, self.high)
        ]


def scale(tried: Iterable[Tried]) -> Scale:
    """A scale that shows all ratios, and of wide intervals as much as is sensible."""
    measured = [t for t in tried if _real(t.ratio)]
    ratios = [t.ratio for t in measured if t.ratio is not None]
    ends = [e for t in measured for e in (t.low, t.high) if e is not None and _real(e)]
    least, most = min(ratios, default=1.0), max(ratios, default=1.0)
    low = max(min([least, *ends]), least / _WIDEST)
    high = min(max([most, *ends]), most * _WIDEST)
    low, high = min(low, 1 / _LEAST), max(high, _LEAST)
    margin = (high / low) ** _MARGIN
    return Scale(low / margin, high * margin)


def _real(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0


def interval(tried: Tried, on: Scale) -> Markup:
    """The interval of one candidate as a line, its ratio as a mark with the verdict's shape."""
    kind, shape = VERDICTS.get(tried.verdict, ("unsure", VERDICTS["cannot tell"][1]))
    parts = [
        tag("line", x1=t.at, x2=t.at, y1=0, y2=28, class_="one" if t.text == "1\u00d7" else "grid")
        for t in on.ticks
    ]
    if tried.ratio is not None and _real(tried.ratio):
        parts += _whisker(tried, on, kind)
        mark = tag("path", d=shape)
        parts.append(
            tag("svg", mark, x=percent(on.at(tried.ratio)), y=14, overflow="visible", class_="mark")
        )
    return tag(
        "svg", *parts, class_=f"forest v-{kind}", width="100%", height=28, aria_hidden="true"
    )


def _whisker(tried: Tried, on: Scale, kind: str) -> list[Markup]:
    low = tried.low if tried.low is not None and math.isfinite(tried.low) else 0.0
    high = tried.high if tried.high is not None and not math.isnan(tried.high) else math.inf
    a, b = percent(on.at(low)), percent(on.at(high))
    parts = [tag("line", x1=a, x2=b, y1=14, y2=14, class_="whisker")]
    for at, inside in ((a, low > on.low), (b, high < on.high)):
        if inside:
            parts.append(tag("line", x1=at, x2=at, y1=10, y2=18, class_="whisker"))
        else:  # it goes on beyond the scale
            arrow = "M5-5 0 0 5 5" if at == a else "M-5-5 0 0-5 5"
            inner = tag("path", d=arrow, class_="whisker")
            parts.append(tag("svg", inner, x=at, y=14, overflow="visible"))
    return parts


# --- curves ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Series:
    """A line: points with rising x. `kind` is its class, "first" or "second"."""

    name: str
    points: tuple[tuple[float, float], ...]
    kind: str = "first"


@dataclass(frozen=True)
class Curve:
    """A plot of lines, and its axes for HTML round it."""

    picture: Markup
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    names: tuple[tuple[str, str], ...]  # class and name of each line
    words: str


def curve(series: Sequence[Series], words: str, unit: str = "", zero: bool = False) -> Curve | None:
    """Lines over a common scale; None when there is no line to draw.

    Args:
        series: the lines; points that are no numbers are left out.
        words: what the plot shows, for who can't see it.
        zero: the vertical axis begins at 0.
    """
    lines = [Series(s.name, _sane(s.points), s.kind) for s in series]
    lines = [line for line in lines if len(line.points) > 1]
    if not lines:
        return None
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    left, right = min(xs), max(xs)
    low, high = (0.0 if zero else min(ys)), max(ys)
    margin = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
    low, high = (low if zero else low - margin), high + margin

    def place(x: float, y: float) -> tuple[float, float]:
        return _BOX * (x - left) / ((right - left) or 1.0), _BOX * (high - y) / (high - low)

    across = [tick(place(x, 0)[0] / _BOX, number(x)) for x in ticks(left, right)]
    up = [tick(place(0, y)[1] / _BOX, number(y)) for y in ticks(low, high, 4)]
    parts = [tag("line", x1=0, x2="100%", y1=t.at, y2=t.at, class_="grid") for t in up]
    drawn = [
        tag("path", d=path(place(*point) for point in line.points), class_=f"line l-{line.kind}")
        for line in lines
    ]
    box = f"0 0 {_BOX:.0f} {_BOX:.0f}"
    inner = tag("svg", *drawn, viewBox=box, preserveAspectRatio="none", width="100%", height="100%")
    picture = tag(
        "svg", *parts, inner, class_="curve", width="100%", height="100%", role="img",
        aria_label=words,
    )  # fmt: skip
    names = tuple((line.kind, line.name) for line in lines)
    return Curve(picture, tuple(across), tuple(up), names, words)


def _sane(points: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Finite points only, means of neighbours where there are too many to be told apart."""
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    group = math.ceil(len(finite) / _POINTS) or 1
    return tuple(
        (part[-1][0], sum(y for _, y in part) / len(part))
        for part in (finite[i : i + group] for i in range(0, len(finite), group))
    )
