"""Findings: one file each, found by discovery.

A finding is a pure function of a `Diagnosis`. To add one, add a file in a folder of this package:
a module docstring (its documentation) and one subclass of `Finding`. Nothing else needs to be
touched.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from hasten.findings.base import Diagnosis, Finding, Found, Kind

__all__ = ["Diagnosis", "Finding", "Found", "Kind", "Verdict", "discover", "judge"]

_ENTRY_POINTS = "hasten.findings"  # the group by which other packages add findings
_SERIOUS = (Kind.WRONG, Kind.RISK)  # these need no cost, and come first
_LEAST_SHARE = 0.01  # of the run: what costs less is not worth a line
_LEAST_SECONDS = 1e-5  # an iteration


@dataclass(frozen=True)
class Verdict:
    """A finding together with what it found, as reports show it."""

    finding: Finding
    found: Found
    share: float | None  # of the run's time


@cache
def discover() -> dict[str, Finding]:
    """Every finding by name.

    Findings of other packages are found by the entry point group `hasten.findings`, each entry
    naming a module.
    """
    names = [module.name for module in pkgutil.walk_packages(__path__, __name__ + ".")]
    names += [entry.module for entry in entry_points(group=_ENTRY_POINTS)]
    for name in names:
        importlib.import_module(name)
    # Also subclasses of subclasses; abstract ones are shared beginnings, not findings.
    found: list[Finding] = [
        cls() for cls in _below(Finding) if cls.__module__ in names and hasattr(cls, "name")
    ]
    return {finding.name: finding for finding in sorted(found, key=lambda f: f.name)}


def _below(base: Any) -> list[Any]:
    return [c for cls in base.__subclasses__() for c in (cls, *_below(cls))]


def judge(diagnosis: Diagnosis) -> list[Verdict]:
    """All that is the matter: first what is wrong or dangerous, then by measured cost.

    A claim about time without a measured cost, or with a negligible one, is dropped.
    """
    verdicts = [
        Verdict(finding, found, _share(diagnosis, finding, found))
        for finding in discover().values()
        for found in finding.look(diagnosis)
    ]
    kept = [verdict for verdict in verdicts if _counts(verdict)]
    return sorted(kept, key=lambda v: (v.finding.kind not in _SERIOUS, -(v.found.cost or 0.0)))


def _share(diagnosis: Diagnosis, finding: Finding, found: Found) -> float | None:
    """Of the run's time: by the iteration that the cost was measured with, where that was later.

    The machine may have been faster or slower by then than while the script was observed.
    """
    if found.cost is None:
        return None
    measured = diagnosis.what_ifs.get(finding.name)
    before = found.of or (measured.before if measured is not None else 0.0)
    return diagnosis.share(found.cost * (diagnosis.iteration / before if before else 1.0))


def _counts(verdict: Verdict) -> bool:
    if verdict.finding.kind in _SERIOUS:
        return True
    cost, share = verdict.found.cost, verdict.share
    if cost is None or share is None:
        return False
    return cost >= _LEAST_SECONDS and share >= _LEAST_SHARE
