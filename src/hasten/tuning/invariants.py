"""What no plan may change, whatever it makes faster: counted in both, compared line by line."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator

from hasten.verification import Counted, Followed

_RATE = 1e-6  # relative: compiled steps keep learning rates as float32
_NAMED = 3  # names that are shown


def broken(baseline: Followed, plan: Followed) -> list[str]:
    """One line for each invariant that differs between two runs from the same seeds."""
    return [*_lengths(baseline, plan), *_counters(baseline, plan), *_batches(baseline, plan),
            *_parameters(baseline, plan), *_checkpoints(baseline, plan)]  # fmt: skip


def remarks(baseline: Followed, plan: Followed) -> list[str]:
    """What differs and may: one line each."""
    found = [f"{name} did nothing: {why}" for name, why in plan.no_effect.items()]
    place = _first(baseline, plan, lambda row: row.content)
    if place is not None and not list(_batches(baseline, plan)):
        found.append(
            f"the same samples have other values from iteration {place + 1} on: their random "
            "numbers depend on the number of workers (item seeds make them equal)"
        )
    return found


def _rows(baseline: Followed, plan: Followed) -> Iterator[tuple[Counted, Counted]]:
    return zip(baseline.iterations, plan.iterations, strict=False)


def _first(baseline: Followed, plan: Followed, of: Callable[[Counted], object]) -> int | None:
    """The place of the first iteration that differs."""
    pairs = enumerate(_rows(baseline, plan))
    return next((place for place, (b, p) in pairs if of(b) != of(p)), None)


def _lengths(baseline: Followed, plan: Followed) -> Iterator[str]:
    ours, theirs = len(baseline.iterations), len(plan.iterations)
    if ours != theirs:
        yield f"iterations: {ours}, under the plan {theirs}"


#: What is counted in each iteration, by the words for it.
_COUNTED: dict[str, Callable[[Counted], int]] = {
    "optimizer steps": lambda row: row.steps,
    "scheduler steps": lambda row: row.scheduler_steps,
    "backward passes": lambda row: row.backwards,
}


def _counters(baseline: Followed, plan: Followed) -> Iterator[str]:
    for what, count in _COUNTED.items():
        place = _first(baseline, plan, count)
        if place is not None:
            ours, theirs = (sum(map(count, f.iterations)) for f in (baseline, plan))
            yield (
                f"{what}: {ours} in {len(baseline.iterations)} iterations, under the plan "
                f"{theirs}; the first difference is in iteration {place + 1}"
            )
    for what in ("samples", "tokens"):
        before, after = updates(baseline, what), updates(plan, what)
        place = next(
            (k for k, (b, p) in enumerate(zip(before, after, strict=False)) if b != p), None
        )
        if place is not None:
            yield (
                f"{what} an update: {before[place]} in update {place + 1}, under the plan "
                f"{after[place]}"
            )
    for place, (b, p) in enumerate(_rows(baseline, plan)):
        if b.steps == p.steps and not _same_rates(b.rates, p.rates):
            yield f"learning rate: {_rates(b)} in iteration {place + 1}, under the plan {_rates(p)}"
            return


def updates(followed: Followed, what: str) -> list[int | None]:
    """Samples or tokens of each update: of all batches since the one before; None: not known."""
    found: list[int | None] = []
    waiting: int | None = 0
    for row in followed.iterations:
        count = getattr(row, what)
        waiting = None if count is None or waiting is None else waiting + count
        if row.steps:
            found.append(waiting)
            waiting = 0
    return found


def _same_rates(ours: tuple[float, ...], theirs: tuple[float, ...]) -> bool:
    return len(ours) == len(theirs) and all(
        math.isclose(b, p, rel_tol=_RATE) for b, p in zip(ours, theirs, strict=True)
    )


def _rates(row: Counted) -> str:
    return " and ".join(f"{rate:.6g}" for rate in dict.fromkeys(row.rates)) or "none"


def _batches(baseline: Followed, plan: Followed) -> Iterator[str]:
    """Every sample as often as without the plan, in the same order, and no batch twice."""
    common = min(len(baseline.iterations), len(plan.iterations))
    ours, theirs = ([row.indices for row in f.iterations[:common]] for f in (baseline, plan))
    place = _first(baseline, plan, lambda row: row.indices)
    if place is not None and Counter(ours) != Counter(theirs):
        yield f"samples: others than without the plan, from iteration {place + 1} on"
    elif place is not None:
        yield f"samples: in another order than without the plan, from iteration {place + 1} on"
    for number, (b, p) in enumerate(zip(baseline.epochs, plan.epochs, strict=False)):
        if b != p:
            yield (
                f"epoch {number + 1}: {b.samples} samples, {b.distinct} of them distinct, under "
                f"the plan {p.samples}, {p.distinct} distinct"
            )
            break
    before, after = repeats(baseline), repeats(plan)
    if len(after) > len(before):
        new = next(place for place in after if place not in before)
        yield (
            f"batches: the one of iteration {new + 1} has been there before; {len(after)} are "
            f"repeated, without the plan {len(before)}"
        )


def repeats(followed: Followed) -> list[int]:
    """Places of iterations whose batch has the content of the one before."""
    pairs = itertools.pairwise(row.content for row in followed.iterations)
    return [place for place, (b, p) in enumerate(pairs, start=1) if b and b == p]


def _parameters(baseline: Followed, plan: Followed) -> Iterator[str]:
    # What moves by rounding alone may move or not: a bias before a batch norm.
    lost = sorted(set(plan.still) - set(baseline.still) - set(baseline.slight))
    rounded = set(plan.slight) - set(baseline.without_gradient)
    moved = sorted(set(baseline.still) - set(plan.still) - rounded)
    if lost:
        yield f"parameters that don't move any more: {_list(lost)}"
    if moved:
        yield f"parameters that move, and don't without the plan: {_list(moved)}"


def _checkpoints(baseline: Followed, plan: Followed) -> Iterator[str]:
    for what, ours, theirs in (
        ("checkpoint", baseline.keys, plan.keys),
        ("saved by the script", baseline.saved, plan.saved),
    ):
        if prefixed := [key for key in theirs if "_orig_mod." in key and key not in ours]:
            yield f"{what}: keys of a compiled wrapper: {_list(prefixed)}"
        gone = [key for key in ours if key not in set(theirs)]
        new = [key for key in theirs if key not in set(ours)]
        if gone and not prefixed:
            yield f"{what}: lacks {_list(gone)}"
        if new and not prefixed:
            yield f"{what}: has in addition {_list(new)}"


def _list(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
