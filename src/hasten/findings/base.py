"""What a finding is made from, and what it says."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from hasten.diagnosis import Ceilings, Examined, Observed, Place, WhatIf
from hasten.records import Profile, Setting

if TYPE_CHECKING:
    from hasten.environment import Environment


#: What the keys of a `what_if` begin with that are no optimisations: see observe/reliefs.py.
RELIEF = "relief:"
_ROUND = 0.35  # of a core that others may use before it counts as taken


class Kind(str, Enum):
    """What a finding claims."""

    COST = "cost"  # something costs time that need not be spent
    LIMIT = "limit"  # what holds the loop back; no mistake by itself
    WRONG = "wrong"  # the training computes something else than it seems to
    RISK = "risk"  # the run may die of it; measured in bytes instead of time


@dataclass(frozen=True)
class Diagnosis:
    """All that was measured of a script; findings are pure functions of it.

    Attributes:
        profile: the loop, its loader, roots and optimizers.
        environment: the machine.
        observed: events with the user's lines, phases, the parts of the run.
        examined: loader alone, arithmetic, memory.
        ceilings: the loop with data (or copies) free.
        what_ifs: by a finding's name, what its `what_if` gave in turns with the script as it is.
        notes: what could not be measured and why.
    """

    profile: Profile
    environment: Environment
    observed: Observed
    examined: Examined = field(default_factory=Examined)
    ceilings: Ceilings = field(default_factory=Ceilings)
    what_ifs: dict[str, WhatIf] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def iteration(self) -> float:
        """Seconds of a plain iteration: the mean, which holds the bursts as well."""
        return self.observed.wall.mean

    @property
    def overall(self) -> float:
        """Seconds of the run for each iteration: validation, saves and borders shared out."""
        seen = self.observed
        extra = sum(stretch.seconds for stretch in seen.stretches)
        return (seen.plain_seconds + extra) / max(1, seen.trained_iterations)

    def phase(self, name: str) -> float:
        """Mean seconds of a phase in an iteration."""
        spread = self.observed.phases.get(name)
        return spread.mean if spread is not None else 0.0

    def share(self, seconds: float) -> float:
        """The part of the run's time that `seconds` an iteration are."""
        return seconds / self.overall if self.overall else 0.0


@dataclass(frozen=True)
class Found:
    """One thing that was found. The framework adds name, kind, share and what fixes it.

    Attributes:
        summary: one line in a user's words: what is the matter.
        todo: one line: what to do about it, with the code where that is short.
        evidence: measured facts that prove it, a line each.
        place: the user's line; None where there is none.
        cost: measured seconds an iteration; None only for Kind.WRONG and Kind.RISK.
        of: seconds of the iteration that the cost was measured with; None: the observed one, or
            that of the finding's what-if.
    """

    summary: str
    todo: str
    evidence: tuple[str, ...] = ()
    place: Place | None = None
    cost: float | None = None
    of: float | None = None


class Finding(ABC):
    """One diagnosis. The module's docstring is its documentation."""

    name: ClassVar[str]
    subject: ClassVar[str]  # "data", "compute", "memory", "correctness", ...
    kind: ClassVar[Kind] = Kind.COST
    fixed_by: ClassVar[tuple[str, ...]] = ()  # optimisations that cure it
    needs_gpu: ClassVar[bool] = False  # can't be seen on a machine without one

    def what_if(self, diagnosis: Diagnosis) -> Setting | None:
        """A setting whose effect shows the cost; it is measured in turns with the baseline.

        None: there is no suspicion, or nothing to measure. `diagnosis.what_ifs` is empty yet.
        A key "relief:NAME" takes something away from the script (instrument/observe/reliefs.py).
        """
        return None

    @abstractmethod
    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Yield what was found; nothing, when this is not the matter."""


def place_from(fact: Any) -> Place | None:
    """A place that an observer gave as a fact."""
    return Place(**fact) if isinstance(fact, dict) else None


def gained(diagnosis: Diagnosis, name: str) -> WhatIf | None:
    """The what-if of a finding, where the change is surely faster."""
    what_if = diagnosis.what_ifs.get(name)
    return what_if if what_if is not None and what_if.sure and what_if.gain > 0 else None


def data_gain(diagnosis: Diagnosis, least: float) -> float:
    """Seconds an iteration that free data would surely save; 0 below `least` of an iteration.

    Without workers it is no more than the loop was seen to wait.
    """
    free, loader = diagnosis.ceilings.data_free, diagnosis.profile.loader
    if free is None or loader is None or not free.sure:
        return 0.0
    gain = free.gain if loader.workers else min(free.gain, diagnosis.phase("data"))
    return gain if gain >= least * free.before else 0.0


def data_measured(diagnosis: Diagnosis) -> float | None:
    """Seconds of the iteration that `data_gain` was measured with, for `Found.of`."""
    free, loader = diagnosis.ceilings.data_free, diagnosis.profile.loader
    return free.before if free is not None and loader is not None and loader.workers else None


def free_cores(diagnosis: Diagnosis) -> int:
    """Whole cores that other programs leave to this process, at least 1."""
    others = float(diagnosis.observed.facts.get("processor", {}).get("others", 0.0))
    return max(1, math.floor(diagnosis.environment.cores - others + _ROUND))


def milliseconds(seconds: float) -> str:
    """A time of an iteration for evidence: "12.3 ms"."""
    return f"{1000 * seconds:.1f} ms" if seconds >= 1e-4 else f"{1000 * seconds:.3f} ms"


def percent(share: float) -> str:
    """A share for evidence: "34 %"."""
    return f"{100 * share:.0f} %"
