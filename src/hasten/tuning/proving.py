"""Proofs in a search: each value is proven once, when it is first seen to be faster.

In a training that counts that is too late: there it is proven before its first block.

A value that is refused may have remedies: other values of the same unit, to be tried instead.
"""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Iterable

from hasten.optimisations import Numerics, Optimisation
from hasten.records import Proof, Value
from hasten.tuning.comparing import Answer, Clock, Command, Steps, prove
from hasten.tuning.trial import Bundle, Trial

_SHARE = 0.1  # of the budget
#: Seconds for the replays of a call that only narrow a bound: at most, and in any case.
_MOST, _LEAST = 6.0, 1.0


class Proofs:
    """What is proven by now.

    Args:
        allow: classes of numerics that are allowed beyond exact and rounding.
        clock: of the budget, of which proofs should take no more than a tenth.

    Attributes:
        seconds: that proofs have taken, without what they have compiled.
    """

    def __init__(self, allow: frozenset[str], clock: Clock | None = None) -> None:
        self._allow, self._clock = allow, clock
        self._room = _SHARE * clock.budget if clock is not None else math.inf
        self.seconds = 0.0
        self._known: dict[tuple[str, str], Proof | str] = {}
        self._latest: dict[str, Proof | str] = {}  # of each unit

    def refusal(self, unit: Optimisation, value: Value) -> Generator[Command, Answer, str]:
        """Why a faster candidate may not be used, or an empty string; proves what is not yet."""
        if isinstance(unit, Bundle):
            for part, its in unit.parts:
                refused = yield from self.refusal(part, its)
                if refused:
                    return f"{part.name}: {refused}"
            return ""
        key = _key(unit, value)
        if key not in self._known:
            seconds = min(_MOST, max(_LEAST, (self._room - self.seconds) / 2))
            proof = yield from prove(unit.name, {unit.name: value}, {}, seconds)
            self._known[key] = proof
            if isinstance(proof, Proof):
                self.seconds += proof.seconds - proof.compile_seconds
                if self._clock is not None:
                    self._clock.exclude(proof.compile_seconds, compiling=True)
        self._latest[unit.name] = self._known[key]
        return self._against(self._known[key])

    def admit(self, trial: Trial) -> Steps:
        """Bar a candidate from its first block where its proof speaks against it.

        For a training that counts: there each block trains the user's model, and an exception
        under a candidate would end it.
        """
        if trial.race.begins:
            trial.race.result.barred = yield from self.refusal(trial.unit, trial.value)

    def remedies(self, unit: Optimisation, value: Value) -> list[tuple[Optimisation, Value]]:
        """What to try in the place of a value that was refused and was not tried yet."""
        if isinstance(unit, Bundle):
            return [found for part, its in unit.parts for found in self.remedies(part, its)]
        proof = self._known.get(_key(unit, value))
        if not isinstance(proof, Proof) or not self._against(proof):
            return []
        values = unit.remedies(value, proof)
        return [(unit, other) for other in values if _key(unit, other) not in self._known]

    def objection(self, unit: Optimisation, value: Value = None) -> str:
        """What a proof has against using an optimisation; empty also where there is no proof.

        Args:
            unit: the optimisation.
            value: the one in question; None: the one that was proven last.
        """
        known = self._latest.get(unit.name) if value is None else self._known.get(_key(unit, value))
        return self._against(known)

    def _against(self, proof: Proof | str | None) -> str:
        if proof is None:
            return ""
        if isinstance(proof, str):
            return f"not proven: {proof}"
        if proof.passed or (
            proof.numerics == Numerics.STATISTICS.value
            and proof.figure <= proof.bound
            and Numerics.STATISTICS.value in self._allow
        ):
            return ""
        return proof.reason

    def numerics(self, unit: Optimisation) -> str:
        """The class that a unit declares, or a weaker one that it turned out to have.

        One iteration that came out the same to the bit is no promise for the others.
        """
        if isinstance(unit, Bundle):
            return _weakest(self.numerics(part) for part, _ in unit.parts)
        proof = self._latest.get(unit.name)
        found = [proof.numerics] if isinstance(proof, Proof) else []
        return _weakest([unit.numerics.value, *found])


def _weakest(classes: Iterable[str]) -> str:
    known = set(classes)
    return next(n.value for n in reversed(Numerics) if n.value in known)


def _key(unit: Optimisation, value: Value) -> tuple[str, str]:
    return unit.name, json.dumps(value, sort_keys=True)
