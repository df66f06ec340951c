"""Which part of a dataset's items is the same every time: found out on a few of them.

Everything here runs in a forked copy of the script's process.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from hasten.instrument.seams.cache_codec import Unstorable, decode, encode
from hasten.instrument.seams.cache_items import same
from hasten.instrument.seams.cache_pipeline import (
    Hook,
    Place,
    Recipe,
    Split,
    at,
    filled,
    holes,
    known,
    layers,
    places,
    steps,
    twin,
)
from hasten.instrument.seams.loader_fingerprint import fingerprint
from hasten.instrument.seams.loader_random import random_states

Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Option:
    """One way to keep items, as seen on the sample.

    Attributes:
        recipe: what is kept.
        item_bytes: of one item, on average.
        seconds: to make an item from what is kept, on average.
        checked: every step that is kept is one that is known not to draw or remember anything.
    """

    recipe: Recipe
    item_bytes: float
    seconds: float
    checked: bool


@dataclass(frozen=True)
class Probed:
    """What the sample has shown.

    Attributes:
        options: ways to keep items, from least to most of the work saved.
        seconds: to make an item as the script does, on average.
        reason: why there is no option, for the user.
    """

    options: tuple[Option, ...]
    seconds: float
    reason: str


def look(dataset: Any, indices: Sequence[int]) -> Probed:
    """Try every way to keep the items of a dataset on some of them."""
    mark, why = fingerprint(dataset)
    if mark is None:
        return Probed((), 0.0, f"whether the dataset changes can't be told: {why}")
    seconds, moved = _plainly(dataset, indices)
    found = next((o for place in places(dataset) if (o := _cuts(dataset, place, indices))), None)
    if found is None:
        found = [] if moved else _whole(dataset, indices)
    if found and fingerprint(dataset)[0] != mark:
        return Probed((), seconds, "fetching items changes the dataset: it has a state of its own")
    return Probed(tuple(found or ()), seconds, "" if found else _why_none(moved))


def _why_none(moved: bool) -> str:
    if moved:
        return (
            "items draw random numbers, and no attribute of the dataset holds a transform "
            "that could be told from the rest"
        )
    return "items fetched twice differ, or hold what no equal copy can be made of"


def _plainly(dataset: Any, indices: Sequence[int]) -> tuple[float, bool]:
    """Seconds for an item of the script, and whether it moves a random state."""
    before = random_states()
    dataset[indices[0]]  # the first one may open files
    begun = time.perf_counter()
    for index in indices:
        dataset[index]
    return (time.perf_counter() - begun) / len(indices), random_states() != before


def seed(number: int) -> None:
    """Put all random states somewhere else."""
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number)


def _steady(function: Callable[[Any], Any], inputs: Sequence[Any]) -> list[Any] | None:
    """Results, where they are equal at other random states and move none; else None."""
    results = []
    for value in inputs:
        seed(1)
        before = random_states()
        one = function(value)
        if random_states() != before:
            return None
        seed(2)
        if not same(one, function(value)):
            return None
        results.append(one)
    return results


def _whole(dataset: Any, indices: Sequence[int]) -> list[Option]:
    items = _steady(lambda index: dataset[index], indices)
    measured = _measure(items, lambda value: value) if items is not None else None
    return [] if measured is None else [Option(Recipe(None), *measured, False)]


def _cuts(dataset: Any, place: Place, indices: Sequence[int]) -> list[Option]:
    """The ways to keep items that are made by the transform in this place."""
    hook = Hook()
    stand_in = twin(dataset, place.path, hook)

    def made(index: int) -> Any:
        hook.calls.clear()
        shape = stand_in[index]
        return (shape, *hook.calls)

    try:
        shown = _steady(made, indices)
    except Exception:  # the dataset does more with what the transform returns than pass it on
        return []
    if shown is None or any(len(s) != 2 or holes(s[0]) != 1 for s in shown):
        return []
    if _remembers(dataset, stand_in, place):
        return []
    return _along(dataset, place, [s[0] for s in shown], [s[1] for s in shown])


def _remembers(dataset: Any, stand_in: Any, place: Place) -> bool:
    """Whether fetching from the twin has set attributes anew: numbers that count, say."""
    pairs = zip(layers(dataset), layers(stand_in), strict=False)
    for original, copy in pairs:
        for name, value in vars(copy).items():
            if name in ("dataset", "transforms", place.path[-1]):
                continue
            if vars(original).get(name) is not value and isinstance(value, (int, float, str)):
                return True
    return False


def _along(dataset: Any, place: Place, shapes: list[Any], calls: list[Call]) -> list[Option]:
    """One option for the decoded item, and one for every deterministic step after it."""
    options: list[Option] = []
    checked = True
    single = all(len(args) == 1 and not kwargs for args, kwargs in calls)
    values: list[Any] = [args[0] for args, _ in calls] if single else []
    pipeline = steps(at(dataset, place.path)) if single else []
    for count in range(len(pipeline) + 1):
        recipe = Recipe(place, count)
        if count:
            step = pipeline[count - 1]
            after = _after(step, values)
            if after is None:
                break
            values, checked = after, checked and known(step) is True
        split = Split(dataset, recipe)
        kept = values if count else calls
        measured = _measure(list(zip(shapes, kept, strict=True)), _finisher(split))
        if measured is not None:
            options.append(Option(recipe, *measured, checked))
    return options


def _after(step: Any, values: list[Any]) -> list[Any] | None:
    """What a step makes of the values, if it makes the same every time."""
    if known(step) is False:
        return None
    try:
        return _steady(step, values)
    except Exception:  # it will fail in the script as well
        return None


def _finisher(split: Split) -> Callable[[Any], Any]:
    return lambda value: filled(value[0], split.finish(value[1]))


def _measure(values: Sequence[Any], finish: Callable[[Any], Any]) -> tuple[float, float] | None:
    """Bytes and seconds for an item that is kept like this; None: it can't be."""
    try:
        data = [memoryview(b"".join(encode(value))) for value in values]
        finish(decode(data[0]))
        begun = time.perf_counter()
        for one in data:
            finish(decode(one))
    except Exception:  # Unstorable, or the script's own transform fails
        return None
    seconds = (time.perf_counter() - begun) / len(data)
    return sum(d.nbytes for d in data) / len(data), seconds


def choose(options: Sequence[Option], items: int, limit: float) -> Option:
    """The option that saves most and fits, else the smallest one.

    Args:
        options: at least one.
        items: of the dataset.
        limit: bytes for all of them.
    """
    fitting = [option for option in options if option.item_bytes * items <= limit]
    if fitting:
        return min(fitting, key=lambda option: (option.seconds, option.item_bytes))
    return min(options, key=lambda option: option.item_bytes)


__all__ = ["Option", "Probed", "Unstorable", "choose", "look", "seed"]
