"""What the units have in common that run the model under autocast in a reduced format.

Their values are `true`, or modules that are kept in float32: where a proof refuses a reduced format
it names the parameter with the worst error, and keeping the module that holds it in float32 is the
first thing that a user would try by hand.
"""

from __future__ import annotations

from typing import ClassVar

from hasten.optimisations.base import Numerics, Optimisation, Seams
from hasten.records import Profile, Proof, Value

_KEY = "float32"
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
            root.autocast(self.dtype, keep=_kept(value))

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
        """A value that also keeps the module with the worst error in float32, or none."""
        module, _, _ = proof.worst.partition(" (")[0].rpartition(".")
        names = _kept(value)
        if not module or module in names or len(names) >= _MOST:
            return ()
        return ({_KEY: [*names, module]},)

    def check(self, value: Value) -> None:
        """`true`, or modules that are kept in float32."""
        if value is True:
            return
        expected = 'true, or a table such as { float32 = ["head"] }'
        if not isinstance(value, dict) or set(value) != {_KEY} or not isinstance(value[_KEY], list):
            raise ValueError(expected)
        if not value[_KEY] or not all(isinstance(n, str) and n for n in value[_KEY]):
            raise ValueError(expected)


def _kept(value: Value) -> tuple[str, ...]:
    """The modules that a value keeps in float32."""
    return tuple(value[_KEY]) if isinstance(value, dict) else ()
