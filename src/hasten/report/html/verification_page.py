"""The page that `hasten verify --html` writes: the loss curves of each pair, and the verdict."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hasten.report import phrases
from hasten.report.html.page import Tile, conditions, render
from hasten.report.html.plots import Curve, Series, curve
from hasten.report.html.svg import number
from hasten.verification import Judged, Verification

_HEADLINES = {
    "holds": ("holds", "the plan, over these iterations"),
    "broken": ("do not use it", "the plan does not train the same"),
    "cannot tell": ("can't tell", "whether the plan is as good"),
}
_PLAN, _AS_IS = "the plan", "as it is"


@dataclass(frozen=True)
class Quantity:
    """One quantity that was judged, in words."""

    name: str
    verdict: str
    facts: tuple[tuple[str, str], ...]


def verification_page(
    found: Verification, arguments: tuple[str, ...], machine: dict[str, Any]
) -> str:
    """The whole page.

    Args:
        found: what came of it.
        arguments: the script and its arguments as Python takes them.
        machine: from `Environment.describe()`.
    """
    return render(
        "verification.html.j2",
        kind="verification",
        script=arguments[1] if arguments[0] == "-m" else arguments[0],
        command=shlex.join(["hasten", "verify", *arguments]),
        headline=_HEADLINES[found.verdict],
        lead=_lead(found),
        tiles=list(_tiles(found)),
        recognised_as="Plan",
        recognised=[
            f"{name} {phrases.value(value)}".strip() for name, value in found.setting.items()
        ],
        seeds=f"{found.seeds[:1].upper()}{found.seeds[1:]}.",
        judged=quantities(found),
        curves=list(curves(found)),
        losses_note=losses_note(found),
        broken=list(found.broken),
        machine=conditions(machine),
        warnings=list(machine.get("limits", ())),
        notes=list(found.notes),
        shield=found.shield.removeprefix("shield "),
    )


def _lead(found: Verification) -> str:
    if found.broken:
        return "The plan changes what no plan may change; the lines are below."
    if found.verdict == "holds":
        return "Nothing was worse beyond the margin, and all that is counted was the same."
    if found.verdict == "broken":
        return "It was worse by more than the margin."
    return "More --seeds, more --iterations or a wider --margin can tell."


def _tiles(found: Verification) -> Iterator[Tile]:
    pairs = phrases.count(len(found.pairs), "pair")
    yield Tile("runs", pairs, "of runs from the same seeds, as it is and under the plan")
    yield Tile("iterations", f"{found.iterations:,}", "of each run")
    for judged in found.judged:
        if not judged.identical and math.isfinite(judged.difference):
            note = f"above 0 is worse; margin {_figure(judged.margin)}"
            yield Tile(f"{judged.what}, mean difference", _figure(judged.difference), note)


def quantities(found: Verification) -> list[Quantity]:
    """All that was judged."""
    return [_quantity(judged, found) for judged in found.judged]


def _quantity(judged: Judged, found: Verification) -> Quantity:
    facts = [(_AS_IS, _figure(judged.baseline)), ("under the plan", _figure(judged.plan))]
    if judged.what == "final loss" and found.smoothed > 1:
        facts.append(("mean over", f"the last {found.smoothed} iterations of each run"))
    if judged.identical:
        facts.append(("difference", f"none: the same to the bit in all {judged.pairs} pairs"))
    else:
        facts.append(("margin", f"{_figure(judged.margin)}: {judged.margin_from}"))
    if not judged.identical and math.isfinite(judged.high):
        sure = f"by {100 * judged.confidence:.0f} % confidence each"
        between = f"above {_figure(judged.low)}, below {_figure(judged.high)}"
        facts.append(("mean difference", f"{_figure(judged.difference)}; {sure} {between}"))
    if judged.reason:
        facts.append(("why", judged.reason))
    return Quantity(judged.what, judged.verdict, tuple(facts))


# --- curves ------------------------------------------------------------------------------------


def curves(found: Verification) -> Iterator[tuple[str, Curve]]:
    """The mean over the pairs with the margin, then each pair."""
    if not found.pairs:
        return
    ours = _mean([pair.baseline[: found.iterations] for pair in found.pairs])
    theirs = _mean([pair.plan[: found.iterations] for pair in found.pairs])
    words = f"Mean loss over {phrases.count(len(found.pairs), 'pair')}"
    yield from _named("Mean of all pairs", ours, theirs, words, _limit(found))
    if len(found.pairs) > 1:
        for pair in found.pairs:
            words = f"Loss in pair {pair.number + 1}"
            yield from _named(f"Pair {pair.number + 1}", pair.baseline, pair.plan, words, ())


def _named(
    name: str,
    ours: tuple[float, ...],
    theirs: tuple[float, ...],
    words: str,
    limit: tuple[tuple[float, float], ...],
) -> Iterator[tuple[str, Curve]]:
    lines = [Series(_AS_IS, _points(ours)), Series(_PLAN, _points(theirs), "second")]
    lines += [Series("as it is, and the margin", limit, "limit")] if limit else []
    ends = [f"{line.name} ends at {number(line.points[-1][1])}" for line in lines if line.points]
    drawn = curve(lines, f"{words}: {', '.join(ends)}")
    if drawn is not None:
        yield name, drawn


def _limit(found: Verification) -> tuple[tuple[float, float], ...]:
    """What the plan's final loss must stay below, over the iterations whose mean is compared."""
    loss = next((judged for judged in found.judged if judged.what == "final loss"), None)
    if loss is None or not math.isfinite(loss.baseline + loss.margin):
        return ()
    level, last = loss.baseline + loss.margin, float(found.iterations)
    return ((last - max(found.smoothed, 1), level), (last, level))


def losses_note(found: Verification) -> str:
    """What the curves show."""
    over = f"the last {found.smoothed}" if found.smoothed > 1 else "the last iteration"
    return (
        "Of every run from its first iteration on. The short line at the end is the margin: the "
        f"mean of the plan's loss over {over} has to stay below it."
    )


def _points(losses: tuple[float, ...]) -> tuple[tuple[float, float], ...]:
    return tuple((float(place), loss) for place, loss in enumerate(losses, start=1))


def _mean(runs: list[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(statistics.fmean(losses) for losses in zip(*runs, strict=False))


def _figure(value: float) -> str:
    return f"{value:.4g}"
