"""Turn off debugging aids that were left on: anomaly detection, a profiler, gradient checks.

What it does
    Anomaly detection stays off whatever the script asks for, a running profiler pauses (it goes
    on living, and has nothing to show for that time), `torch.autograd.gradcheck` says yes without
    looking. What the script asks about these modes is answered as it has set them.

Why it is faster
    Anomaly detection writes down a stack trace for every operation and looks for NaN in every
    gradient. A profiler records each operation. A gradient check runs the function once for
    every element of its inputs.

When it helps
    Scripts in which one of them is on for the whole training. Remove it from the script, and the
    plan no longer needs this.

Numerics
    Class `exact`: nothing is computed in another way; but a NaN no longer stops the script.

Example
    torch.autograd.set_detect_anomaly(False)

Source
    PyTorch performance tuning guide, "Disable debugging APIs".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.records import Profile, Value

if TYPE_CHECKING:
    from hasten.environment import Environment


_AIDS = ("anomaly", "gradcheck", "profiler")


class DebugOff(Optimisation):
    """Autograd's debugging aids are off."""

    name: ClassVar[str] = "debug-off"
    numerics: ClassVar[Numerics] = Numerics.EXACT
    fixes: ClassVar[tuple[str, ...]] = ("debug-mode-on",)
    order: ClassVar[int] = 5
    touches: ClassVar[str] = "model"

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Scripts that have one on while they train."""
        found = [aid for aid in _AIDS if aid in profile.debug]
        if not found:
            return Applies(reason="no anomaly detection, profiler or gradient check is on")
        return Applies(values=(found,))

    def enable(self, seams: Seams, value: Value) -> None:
        """Off from now on."""
        seams.debugging.switch_off(value)

    def disable(self, seams: Seams) -> None:
        """All as the script has it."""
        seams.debugging.switch_off(())

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """They are off."""
        return None if set(seams.debugging.off) == set(value) else "they are on"

    def check(self, value: Value) -> None:
        """A list with at least one of them, none twice."""
        known = isinstance(value, list) and all(isinstance(aid, str) for aid in value)
        if not known or not value or set(value) - set(_AIDS) or len(set(value)) < len(value):
            raise ValueError('a list of "anomaly", "gradcheck" or "profiler"')
