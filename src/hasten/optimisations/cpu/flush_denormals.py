"""Take numbers that are too small for the normal format for zeros.

What it does
    Sets the flush-to-zero and denormals-are-zero bits of the processor in the main thread and
    in every intra-op thread; the backward pass of the CPU runs in these as well.

Why it is faster
    Processors compute with denormal float32 numbers (below 1.2e-38) through a slow path, some of
    them a hundred times slower.

When it helps
    Training on the CPU in which something decays without end: momentum of parameters that get
    no gradient any more, weights under decay, recurrent states. Without denormals it does nothing.

Numerics
    Class `rounding`: numbers below 1.2e-38 become zeros. Threads that the script itself has
    started before keep their own setting.

Example
    torch.set_flush_denormal(True)

Source
    PyTorch, "torch.set_flush_denormal"; Intel 64 and IA-32 Architectures Software Developer's
    Manual, on the MXCSR register.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.records import Profile, Value

if TYPE_CHECKING:
    from hasten.environment import Environment


class FlushDenormals(Optimisation):
    """Denormal numbers count as zeros."""

    name: ClassVar[str] = "flush-denormals"
    numerics: ClassVar[Numerics] = Numerics.ROUNDING
    order: ClassVar[int] = 24
    likely: ClassVar[bool] = True
    touches: ClassVar[str] = "both"

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Training on the CPU in which denormal numbers were seen."""
        if profile.device != "cpu":
            return Applies(reason=f"the model computes on {profile.device}, not on the CPU")
        if not profile.denormals:
            return Applies(
                reason="no denormal number is among parameters, gradients and optimizer state"
            )
        return Applies(values=(True,))

    def enable(self, seams: Seams, value: Value) -> None:
        """Flush from now on."""
        seams.flags.flush_denormals(True)

    def disable(self, seams: Seams) -> None:
        """As the script has it."""
        seams.flags.flush_denormals(None)

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """A product of small numbers is zero in every thread."""
        return None if seams.flags.denormals_flushed else "some thread still computes denormals"
