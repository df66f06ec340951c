"""What a difference may be: bounds from a model's own sensitivity, and the checks against them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hasten.instrument.proof.deviation import Deviation, overall
from hasten.instrument.proof.rounding import Format

Deviations = dict[str, Deviation]

#: A tensor smaller than this part of the typical one is judged as if it were that large: the
#: gradient of a bias before batch norm is zero but for rounding, and says nothing.
FLOOR = 0.1
#: Errors beyond these are refused whatever the sensitivity is: the update points elsewhere.
CAP, CAP_OVERALL = 0.9, 0.5
#: The part of the entries that may turn to zeros.
LOST = 2e-3
_MANY = 3.0  # times what is allowed
#: The scale of the gradient: standard errors that are allowed, and the format-free allowance.
SCALE_ERRORS, SCALE_FLOOR = 4.0, 1e-4
#: What the spread of the scale is before any draw, in units: a number that everything is multiplied
#: by errs by up to one unit of its power of two, evenly, which is 0.3 to 0.6 units.
_PRIOR_DRAWS, _PRIOR_UNITS = 4, 0.4
_KNOWN = 4  # replays that show a spread or a mean


@dataclass(frozen=True)
class Check:
    """One figure against what is allowed for it."""

    what: str
    worst: str
    figure: float
    bound: float
    text: str = ""
    rank: int = 0  # of several that fail, the highest names the cause

    @property
    def passed(self) -> bool:
        """Whether the figure is allowed; what isn't a number never is."""
        return self.figure <= self.bound

    @property
    def strain(self) -> float:
        """The figure in parts of its bound."""
        return self.figure / self.bound if self.bound else math.inf if self.figure else 0.0

    @property
    def line(self) -> str:
        """For the user."""
        if self.text:
            return self.text
        return f"{self.what} {self.figure:.2g} at `{self.worst}`, allowed {self.bound:.2g}"


def factors(unit: Format) -> tuple[float, float, float]:
    """Factor on a tensor's sensitivity, on that of the whole, and least bound, for a format.

    The draws round at random what the candidate rounds by a rule, so that its error is one more
    draw; how far one may lie beyond the largest of three, with what they don't model, was measured
    over all kinds of models (docs/bounds.md).
    """
    if unit.reduced:
        return 4.0, 2.5, unit.unit
    return 6.0, 6.0, 100 * unit.unit


def errors(deviations: Deviations, part: float = FLOOR) -> dict[str, float]:
    """Relative error of each tensor, floored by a part of its share of the norm of all."""
    whole = overall(deviations)
    found = {}
    for name, d in deviations.items():
        share = whole.reference * d.count / max(1, whole.count)
        scale = max(d.reference, part**2 * share, d.floor)
        found[name] = _ratio(d.difference, scale)
    return found


def _ratio(part: float, whole: float) -> float:
    return math.sqrt(part / whole) if whole else math.inf if part else 0.0


def check_errors(
    what: str,
    candidate: Deviations,
    draws: Sequence[Deviations],
    unit: Format,
    together: bool = True,
    factor: float | None = None,
) -> list[Check]:
    """Each tensor against the model's sensitivity.

    Args:
        what: the kind of figure, for the user.
        candidate: what is judged.
        draws: what rounding alone did.
        unit: the format of the coarser side.
        together: the tensors make up one vector, which is judged as well, and in which a small
            tensor matters little.
        factor: on the sensitivity, if not that of the format.
    """
    usual, factor_overall, least = factors(unit)
    factor = factor or usual
    part = FLOOR if together else 0.0
    figures, moved = errors(candidate, part), [errors(d, part) for d in draws]
    sensitivity = {n: max((m.get(n, 0.0) for m in moved), default=0.0) for n in figures}
    # With one or two elements, three draws may all happen to be small.
    typical = statistics.median(sensitivity.values()) / 2 if sensitivity else 0.0
    checks = [
        Check(what, n, e, min(CAP, max(least, factor * max(sensitivity[n], typical))))
        for n, e in figures.items()
    ]
    if together and len(figures) > 1:
        whole = overall(candidate)
        spread = max((_overall_error(d) for d in draws), default=0.0)
        bound = min(CAP_OVERALL, max(least, factor_overall * spread))
        worst = max(figures, key=lambda n: figures[n])
        figure = _ratio(whole.difference, max(whole.reference, whole.floor))
        text = f"{what} {figure:.2g} over all, allowed {bound:.2g} (most at `{worst}`)"
        checks.append(Check(what, worst, figure, bound, text))
    return checks


def _overall_error(deviations: Deviations) -> float:
    whole = overall(deviations)
    return _ratio(whole.difference, max(whole.reference, whole.floor))


def left_out(deviations: Deviations) -> float:
    """The part of a gradient's entries that turned to exact zeros, less that of the reverse.

    A unit that falls silent by a rounding takes its row along; as many wake up that way.
    """
    whole = overall(deviations)
    return (whole.lost - whole.gained) / max(1, whole.large)


def lost_bound(draws: Sequence[float], candidates: int) -> float:
    """What the mean of so many candidates may leave out."""
    spread = max((abs(d) for d in draws), default=0.0)
    return max(LOST, 3 * spread / math.sqrt(candidates))


def check_lost(candidate: Deviations, draws: Sequence[float], candidates: Sequence[float]) -> Check:
    """How many entries of the gradient have turned to exact zeros.

    Args:
        candidate: the first replay, which says where they are.
        draws: what rounding alone leaves out.
        candidates: what the candidate's replays leave out.
    """
    part, bound = statistics.fmean(candidates), lost_bound(draws, len(candidates))
    worst = max(candidate, key=lambda n: candidate[n].lost, default="")
    text = f"{part:.1%} of the gradient is lost (most in `{worst}`), allowed {bound:.1%}"
    whole = overall(candidate)
    # Exact zeros aren't what rounding makes: a few times what is allowed names the cause.
    explains = whole.gone > whole.difference / 2 or part > _MANY * bound
    return Check("lost gradient", worst, part, bound, text, rank=1 if explains else 0)


def check_finite(what: str, candidate: Deviations) -> Check | None:
    """A check that fails when the candidate holds values that aren't finite."""
    bad = {name: d.bad for name, d in candidate.items() if d.bad}
    if not bad:
        return None
    worst = max(bad, key=lambda n: bad[n])
    text = (
        f"{sum(bad.values())} values of the {what} aren't finite, in `{worst}`; "
        "the reference has none"
    )
    return Check(what, worst, float(sum(bad.values())), 0.0, text, rank=2)


# --- the scale of the gradient ---------------------------------------------------------------


def weights(draws: Sequence[Deviations]) -> dict[str, float]:
    """How well each tensor's scale is known: the inverse of its squared relative error.

    The scale is read off the tensors with the least rounding noise (those near the output, as a
    rule): a hundredth shows there long before it shows in the whole gradient.
    """
    noise = {}
    for name in draws[0] if draws else ():
        ratios = [_ratio(d[name].difference, d[name].reference) for d in draws if name in d]
        if draws[0][name].count > 1 and draws[0][name].reference:
            noise[name] = max(*ratios, 1e-12)
    least = min(noise.values(), default=1.0)
    return {name: (least / n) ** 2 for name, n in noise.items()}


def scale(deviations: Deviations, weight: dict[str, float]) -> float:
    """The scale of a gradient against its reference, less 1."""
    known = [(weight[n], d.projection - 1) for n, d in deviations.items() if n in weight]
    total = sum(w for w, _ in known)
    return sum(w * value for w, value in known) / total if total else 0.0


def scale_bound(draws: Sequence[float], candidates: Sequence[float], unit: Format) -> float:
    """What the mean scale of the candidate's replays may differ from what is expected.

    Four standard errors, by the candidate's own spread, since the draws round twice as much. It
    counts as far as draws or a rounding that all entries share, of up to one unit, explain it; a
    wider one is a fault's, and widens nothing. Of a few replays the spread isn't known yet. One
    unit is always allowed: the weights of a small model have one rounding, the same each time.
    """
    usual, own = scale_spread(draws, unit), scale_spread(candidates, unit)
    own = min(own, max(usual, unit.unit)) if len(candidates) >= _KNOWN else max(usual, own)
    noise = SCALE_ERRORS * own / math.sqrt(max(1, len(candidates)))
    return max(SCALE_FLOOR, unit.unit, noise)


def shortened(draws: Sequence[float], unit: Format) -> float:
    """How much rounding alone shortens the gradient: a unit near zero that falls silent.

    Nothing, unless the draws show it beyond two standard errors.
    """
    if len(draws) < _KNOWN:
        return 0.0
    middle = statistics.fmean(draws)
    return min(0.0, middle + 2 * scale_spread(draws, unit) / math.sqrt(len(draws)))


def scale_spread(scales: Sequence[float], unit: Format) -> float:
    """Standard deviation of the scales of replays, given what it is before any of them."""
    prior = _PRIOR_UNITS * unit.unit
    middle = statistics.fmean(scales) if scales else 0.0
    squares = sum((s - middle) ** 2 for s in scales) + _PRIOR_DRAWS * prior**2
    return math.sqrt(squares / (max(0, len(scales) - 1) + _PRIOR_DRAWS))


def spread(deviations: Deviations, weight: dict[str, float]) -> float:
    """Squared relative error, weighted as the scale is."""
    known = [
        (w, d.difference / d.reference) for n, w in weight.items() if (d := deviations[n]).reference
    ]
    total = sum(w for w, _ in known)
    return sum(w * value for w, value in known) / total if total else 0.0


def check_scale(
    draws: Sequence[float], candidates: Sequence[float], unit: Format, noise: float = 1.0
) -> Check:
    """Whether the gradient is scaled: a loss or a gradient multiplied by 1.01, or 1 % left out.

    Args:
        draws: scales of replays with random roundings, less 1.
        candidates: the same of the candidate.
        unit: the format.
        noise: squared error of the candidate in parts of that of the draws.
    """
    bound = scale_bound(draws, candidates, unit)
    middle, least = statistics.fmean(candidates), shortened(draws, unit) * min(1.0, noise)
    excess = middle - max(least, min(0.0, middle))
    text = f"the gradient is {1 + excess:.4f} times the reference's, allowed 1 ± {bound:.4f}"
    return Check("scale", "gradient", abs(excess), bound, text)
