"""Proofs in a search: each optimisation is proven once, when it is first seen to be faster."""

from __future__ import annotations

from collections.abc import Generator

from hasten.optimisations import Numerics, Optimisation
from hasten.records import Proof, Value
from hasten.tuning.comparing import Answer, Command, prove
from hasten.tuning.trial import Bundle


class Proofs:
    """What is proven by now.

    Args:
        allow: classes of numerics that are allowed beyond exact and rounding.
    """

    def __init__(self, allow: frozenset[str]) -> None:
        self._allow = allow
        self._known: dict[str, Proof | str] = {}

    def refusal(self, unit: Optimisation, value: Value) -> Generator[Command, Answer, str]:
        """Why a faster candidate may not be used, or an empty string; proves what is not yet."""
        if isinstance(unit, Bundle):
            for part, its in unit.parts:
                refused = yield from self.refusal(part, its)
                if refused:
                    return f"{part.name}: {refused}"
            return ""
        if unit.name not in self._known:
            self._known[unit.name] = yield from prove(unit.name, {unit.name: value}, {})
        return self.objection(unit)

    def objection(self, unit: Optimisation) -> str:
        """What a proof has against using its optimisation; empty also where there is no proof."""
        proof = self._known.get(unit.name)
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
        """The class that a unit turned out to have, or what it declares."""
        if isinstance(unit, Bundle):
            known = [self.numerics(part) for part, _ in unit.parts]
            return next(n.value for n in reversed(Numerics) if n.value in known)
        proof = self._known.get(unit.name)
        return proof.numerics if isinstance(proof, Proof) else unit.numerics.value
