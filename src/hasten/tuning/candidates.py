"""What a search may try: units that the user allows and that apply to the script."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from hasten.environment import Environment
from hasten.optimisations import Applies, Numerics, Optimisation, discover, excluded
from hasten.records import Profile, Ratio, Value

Candidate = tuple[Optimisation, Value]
Item = TypeVar("Item")
#: Told of a unit that is not tried, with the reason in a user's words.
SayNot = Callable[[Optimisation, str], None]

_DATA_MATTERS = 1.03  # a loop that data makes slower is at least this much faster without


@dataclass(frozen=True)
class Scope:
    """What the user allows."""

    allow: frozenset[str] = frozenset()
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    device: str | None = None  # move the model there, if the script leaves it idle
    inside: bool = False  # the real training: nothing that takes a process of its own
    classes: frozenset[Numerics] = frozenset(Numerics)  # what units may declare

    def covers(self, name: str) -> bool:
        """Whether the unit may be tried at all."""
        return name not in self.skip and (not self.only or name in self.only)

    def objection(self, unit: Optimisation) -> str:
        """Why a unit may not be tried in this kind of search, or an empty string."""
        if not unit.searched and not (unit.live and unit.name in self.only):
            return "buys memory, not time: hasten batch tries it"
        if self.inside and not unit.live:
            return "takes a process of its own, as hasten tune has it"
        if unit.numerics not in self.classes:
            return f"of class {unit.numerics.value}, which was not allowed"
        return ""

    def values(self, unit: Optimisation, applies: Applies) -> Applies:
        """What of the values may be tried: another device only if it was asked for."""
        if not unit.moves or not applies:
            return applies
        there = tuple(value for value in applies.values if value == self.device)
        idle = " and ".join(str(value) for value in applies.values)
        return Applies(there, f"{idle} is there and idle: --device {applies.values[0]} tries it")


def collect(
    scope: Scope, profile: Profile, environment: Environment, say_not: SayNot
) -> list[Candidate]:
    """Every value of every unit that may be tried on this script."""
    found: list[Candidate] = []
    for unit in discover().values():
        if not scope.covers(unit.name):
            continue
        applies = scope.values(unit, unit.applies(profile, environment))
        reason = "" if applies else applies.reason
        if reason or (reason := scope.objection(unit)):
            say_not(unit, reason)
            continue
        found += [(unit, value) for value in applies.values]
    return found


def together(items: Iterable[Item], unit_of: Callable[[Item], Optimisation]) -> list[Item]:
    """What can be in force at once: the first of each unit, without what one before excludes."""
    kept: dict[str, Item] = {}
    for item in items:
        unit = unit_of(item)
        if unit.name not in kept and not excluded(unit, kept):
            kept[unit.name] = item
    return list(kept.values())


def without_free_data(
    candidates: list[Candidate], ceiling: Ratio | None, say_not: SayNot
) -> list[Candidate]:
    """The candidates without those of the data path, where data costs nothing anyway."""
    if ceiling is None or ceiling.high >= _DATA_MATTERS:
        return candidates
    for unit in dict.fromkeys(unit for unit, _ in candidates if unit.data_path):
        say_not(unit, f"data is free already: without any wait {ceiling.ratio:.2f}x at most")
    return [(unit, value) for unit, value in candidates if not unit.data_path]
