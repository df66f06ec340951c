"""What the units have in common that run the model under autocast in a reduced format.

Their values are `true`, or what is kept in float32. Where a proof refuses a reduced format it names
the parameter with the worst error: the module that holds it is the first thing that a user would
keep in float32 by hand, and the loss, softmax and sums inside of the model the second.
"""

from __future__ import annotations

from typing import ClassVar

from hasten.optimisations.base import Numerics, Optimisation, Seams
from hasten.records import Profile, Proof, Value

_KEY, _FUNCTIONS = "float32", "functions"
_MOST = 3  # modules that are kept; a model that needs more is left as it is


class Reduced(Optimisation):
    """Autocast around every root's training calls."""

    numerics: ClassVar[Numerics] = Numerics.ROUNDING
    fixes: ClassVar[tuple[str, ...]] = ("compute-bound",)
    needs: ClassVar[str] = "roots"
    dtype: ClassVar[str]

    @staticmethod
    def unsuited(profile: Profile) -> str:
        """Why no reduced format can be tried on a script, or an empty string."""
        if not profile.roots:
            return "no module is called through __call__ with gradients on"
        own = [root.own_autocast for root in profile.roots if root.own_autocast]
        if own:
            return f"the script already runs the model under autocast ({own[0]})"
        if profile.own_scaler:
            return "the script scales its loss with a GradScaler of its own"
        return ""

    def enable(self, seams: Seams, value: Value) -> None:
        """Autocast from the next call on."""
        for root in seams.roots:
            root.autocast(self.dtype, keep=_kept(value), functions=_wide(value))

    def disable(self, seams: Seams) -> None:
        """Calls run in the script's own precision."""
        for root in seams.roots:
            root.autocast(None)

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """Some call has computed in the format."""
        if not any(root.calls for root in seams.roots):
            return "no root was called"
        if not any(root.reduced_calls for root in seams.roots):
            return "autocast changed no operation of the model"
        return None

    def remedies(self, value: Value, proof: Proof) -> tuple[Value, ...]:
        """The module with the worst error in float32 as well; then losses, softmax and sums."""
        module, _, _ = proof.worst.partition(" (")[0].rpartition(".")
        names = _kept(value)
        found: list[Value] = []
        if module and module not in names and len(names) < _MOST and not _wide(value):
            found.append({_KEY: [*names, module]})
        if value is True:
            found.append({_FUNCTIONS: "float32"})
        return tuple(found)

    def check(self, value: Value) -> None:
        """`true`, or what is kept in float32."""
        if value is True or value == {_FUNCTIONS: "float32"}:
            return
        names = value.get(_KEY) if isinstance(value, dict) and set(value) == {_KEY} else None
        if not (isinstance(names, list) and names and all(isinstance(n, str) and n for n in names)):
            raise ValueError(
                'true, or a table such as { float32 = ["head"] } or { functions = "float32" }'
            )


def _kept(value: Value) -> tuple[str, ...]:
    """The modules that a value keeps in float32."""
    return tuple(value.get(_KEY, ())) if isinstance(value, dict) else ()


def _wide(value: Value) -> bool:
    """Whether a value keeps the functions that lose digits in float32."""
    return isinstance(value, dict) and _FUNCTIONS in value
