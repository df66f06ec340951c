"""What a model computes in a way that may be slower than another, and what the other way takes.

Facts for `Examined.facts`, each a list: "attention" (by hand), "weights" (of
`nn.MultiheadAttention`, that nothing uses) and "biases" (before a batch norm). An entry has
"place" or "library" (a line as a text), "times" (of it in an iteration), "as_is" and "instead"
(seconds an iteration, measured in turns; on a CPU processor seconds, which other programs don't
change), and what its kind adds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from hasten.diagnosis import Place
from hasten.instrument.observe.arithmetic import Captured
from hasten.instrument.observe.attention import Attention, replaced
from hasten.instrument.observe.attention_weights import Weights, without
from hasten.instrument.observe.biases import Biases, unbiased
from hasten.instrument.observe.functions import watch
from hasten.instrument.observe.instead import Instead, in_turns
from hasten.instrument.seams.loader_random import preserved
from hasten.instrument.seams.root import Root

_LONGEST = 8.0  # seconds after which nothing else is begun
_Make = Callable[[], Instead]
_Case = tuple[str, Any, int, Callable[[Any], _Make | None]]


def alternatives(
    captured: Sequence[tuple[Root, Captured]], seconds: float
) -> dict[str, list[dict[str, Any]]]:
    """All of it.

    Args:
        captured: roots with the arguments of a call.
        seconds: that may be spent, about.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    deadline = time.perf_counter() + max(seconds, _LONGEST)
    for root, seen in captured:
        cases = _cases(root, seen)
        for kind, case, count, way in cases:
            if time.perf_counter() > deadline:
                return found
            entry = _timed(root, seen, case, count, way, seconds / len(cases))
            if entry is not None:
                found.setdefault(kind, []).append(entry | case.facts())
    return found


def _cases(root: Root, seen: Captured) -> list[_Case]:
    by_hand, weights, biases = Attention(), Weights(), Biases()
    if not watch(root, seen, [by_hand, weights, biases]):
        return []
    cases: list[_Case] = [("attention", *one, replaced) for one in by_hand.chains]
    cases += [("weights", *one, without) for one in weights.calls]
    return cases + [("biases", *one, unbiased) for one in biases.layers]


def _timed(
    root: Root,
    seen: Captured,
    case: Any,
    count: int,
    way: Callable[[Any], _Make | None],
    seconds: float,
) -> dict[str, Any] | None:
    try:
        with preserved(), seen.formats():  # a dropout draws
            make = way(case)
            if make is None:
                return None
            as_is, instead = in_turns(make, count, root.device, seconds)
    except (RuntimeError, TypeError, ValueError, IndexError):  # a form that we did not expect
        return None
    place: Place | None = case.at
    return {
        "place": asdict(place) if place is not None else None,
        "library": case.library,
        "times": count * seen.calls,
        "as_is": [seen.calls * one for one in as_is],
        "instead": [seen.calls * one for one in instead],
    }
