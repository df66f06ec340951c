"""Optimisations: one file each, found by discovery.

An optimisation changes how training runs, never what is trained, and reaches the script through
seams only. To add one, add a file in a folder of this package: a module docstring (its
documentation) and one subclass of `Optimisation`. Nothing else needs to be touched.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from hasten.errors import HastenError
from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.records import Setting

__all__ = [
    "Applies",
    "Numerics",
    "Optimisation",
    "Seams",
    "compiles",
    "discover",
    "excluded",
    "find",
    "named",
]


_ENTRY_POINTS = "hasten.optimisations"  # the group by which other packages add units


@cache
def discover() -> dict[str, Optimisation]:
    """Every optimisation by name, in the order in which the search should try them.

    Units of other packages are found by the entry point group `hasten.optimisations`, each
    entry naming a module.
    """
    names = [module.name for module in pkgutil.walk_packages(__path__, __name__ + ".")]
    names += [entry.module for entry in entry_points(group=_ENTRY_POINTS)]
    for name in names:
        importlib.import_module(name)
    found = [cls for cls in _below(Optimisation) if cls.__module__ in names]
    units = [cls() for cls in found if "name" in vars(cls)]  # others are what some have in common
    return {unit.name: unit for unit in sorted(units, key=lambda unit: (unit.order, unit.name))}


def _below(base: Any) -> Iterator[Any]:
    for cls in base.__subclasses__():
        yield cls
        yield from _below(cls)


def compiles(setting: Setting) -> bool:
    """Whether the first iterations under a setting compile."""
    return any(discover()[name].compiles for name in setting if name in discover())


def excluded(unit: Optimisation, names: Iterable[str]) -> bool:
    """Whether a unit can't be in force beside one of these: it excludes it, or the other way."""
    return any(n in unit.excludes or unit.name in discover()[n].excludes for n in names)


def find(name: str) -> Optimisation:
    """The optimisation of this name.

    Raises:
        KeyError: there is none.
    """
    return discover()[name]


def named(name: str) -> Optimisation:
    """The optimisation that a user has named.

    Raises:
        HastenError: there is none; says which one may have been meant.
    """
    known = discover()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
        raise HastenError(f"no optimisation is called {name}: {hint}")
    return known[name]
