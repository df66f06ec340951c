"""Elements with everything in them escaped, and scales.

Plots have no size of their own: horizontal positions are percentages of whatever width there is,
so that text keeps its size on a telephone as on a wall.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from markupsafe import Markup, escape

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_RATIOS = (1.0, 1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0)


def tag(name: str, *children: str, **attributes: object) -> Markup:
    """An element. In attributes "_" stands for "-", a last one is dropped, None is left out."""
    named = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value)
        for key, value in attributes.items()
        if value is not None
    )
    inner = Markup("").join(escape(child) for child in children)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), named, inner)


def percent(share: float) -> str:
    """A position or length as a share of the width, kept inside it."""
    return f"{100 * min(1.0, max(0.0, share)):.3f}".rstrip("0").rstrip(".") + "%"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, about `count`; `low` alone when they are equal."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low] if math.isfinite(low) else []
    raw = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * s for s in _STEPS if power * s >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def ratio_ticks(low: float, high: float, apart: float = 0.12) -> list[float]:
    """Ratios that people think in, from `low` to `high` on a logarithmic scale, 1 among them.

    Args:
        low, high: ends of the scale, low < 1 < high.
        apart: least distance between two, as a share of the scale.
    """
    least = apart * math.log(high / low)
    found = [1.0]
    known = {*_RATIOS, 20.0, 30.0, 50.0, 100.0}
    known |= {1.0 / r for r in known}
    for ratio in sorted(known, key=lambda r: (_plainness(r), abs(math.log(r)))):
        inside = low <= ratio <= high
        if inside and all(abs(math.log(ratio / other)) >= least for other in found):
            found.append(ratio)
    return sorted(found)


def _plainness(ratio: float) -> int:
    """How plain a number is to read: 2 and 0.5 before 1.5, that before 1.35."""
    if ratio in (2.0, 0.5, 5.0, 0.2, 10.0, 0.1):
        return 0
    return 1 if ratio in (1.5, 1.2, 1.1, 3.0) or round(1 / ratio, 6) in (1.25, 1.5, 1.1) else 2


def number(value: float) -> str:
    """A number of an axis, with no more digits than it needs."""
    if value == 0:
        return "0"
    if abs(value) >= 10_000 or abs(value) < 1e-3:
        return f"{value:.3g}"
    return f"{value:,.4f}".rstrip("0").rstrip(".")


def milliseconds(seconds: float) -> str:
    """A time in milliseconds, with three digits that count."""
    value = 1000 * seconds
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f} ms"


def path(points: Iterable[tuple[float, float]]) -> str:
    """The data of a line through points."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
