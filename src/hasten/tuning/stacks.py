"""Stacks: several candidates raced as one.

Gains multiply while noise stays as it is, so everything promising together is told from the
baseline long before any part of it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Sequence

from hasten.optimisations import Optimisation
from hasten.statistics import Verdict
from hasten.tuning.candidates import Candidate, together
from hasten.tuning.trial import Bundle, Trial

#: Why a unit (with this value) can't be in a plan, or an empty string.
Objection = Callable[..., str]

_MORE_GAIN = 0.02  # of a new stack, above those of this round: else turns go to those


def likely(
    candidates: Iterable[Candidate], idle: Container[str], objection: Objection
) -> Bundle | None:
    """What mostly helps; None where that is less than two units.

    Args:
        candidates: to choose from.
        idle: names of those that were seen to do nothing here.
        objection: what proofs have said so far.
    """
    chosen = (
        (unit, value)
        for unit, value in candidates
        if unit.likely and unit.name not in idle and not objection(unit)
    )
    parts = together(chosen, lambda part: part[0])
    return Bundle(tuple(parts)) if len(parts) > 1 else None


def promising(
    trials: Sequence[Trial], earlier: Iterable[Trial], objection: Objection
) -> tuple[Bundle, float] | None:
    """All of a round that looks faster, and the logarithm of what it should gain.

    None where it was one before, or promises no more than a stack that has got turns already.
    """
    best_first = sorted(trials, key=lambda trial: trial.gain, reverse=True)
    chosen = (t for t in best_first if not isinstance(t.unit, Bundle) and _promises(t, objection))
    parts = together(chosen, lambda trial: trial.unit)
    bundle = Bundle(tuple((t.unit, t.value) for t in parts))
    gain = math.fsum(trial.gain for trial in parts)
    before = max((t.gain for t in trials if isinstance(t.unit, Bundle)), default=-math.inf)
    again = any(_same(trial.unit, bundle) for trial in earlier)
    return None if len(parts) < 2 or again or gain < before + _MORE_GAIN else (bundle, gain)


def _same(unit: Optimisation, bundle: Bundle) -> bool:
    return isinstance(unit, Bundle) and unit.setting == bundle.setting


def _promises(trial: Trial, objection: Objection) -> bool:
    """Whether a candidate belongs to the stack: it looks faster, and nothing speaks against."""
    compared = trial.race.result
    refused = trial.refused or objection(trial.unit, trial.value)
    if refused or compared.problem or not compared.pairs:
        return False
    if trial.compiles_long:
        return trial.won
    return trial.ratio() > 1.0 and compared.verdict in (None, Verdict.FASTER)
