"""Turn off the autocast that the script runs its model in.

What it does
    Calls of every root module run outside of the script's `torch.autocast`, in the precision of
    the parameters; what they return has the format that the script is used to.

Why it is faster
    A CPU without bfloat16 or float16 instructions emulates them, and is many times slower than
    in float32. With them, layers that are small still lose more by the casts than they gain.

When it helps
    Scripts that were written for a GPU and run on a CPU.

Numerics
    Class `rounding`: towards more precision.

Example
    with torch.autocast("cpu", enabled=False):
        output = model(batch)

Source
    PyTorch, "Automatic Mixed Precision package - torch.amp"; public reports of autocast that is
    a hundred times slower on CPUs, such as pytorch/pytorch issue 118499.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.records import Profile, Value

if TYPE_CHECKING:
    from hasten.environment import Environment


class AutocastOff(Optimisation):
    """Root calls outside of the script's own autocast."""

    name: ClassVar[str] = "autocast-off"
    numerics: ClassVar[Numerics] = Numerics.ROUNDING
    order: ClassVar[int] = 11
    excludes: ClassVar[tuple[str, ...]] = ("amp-bf16", "amp-fp16")
    needs: ClassVar[str] = "roots"

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Scripts on the CPU with an autocast of their own around a model in float32."""
        if not profile.roots:
            return Applies(reason="no module is called through __call__ with gradients on")
        if not any(root.own_autocast for root in profile.roots):
            return Applies(reason="the script uses no autocast")
        if profile.device != "cpu":
            return Applies(reason=f"{profile.device} is made for the formats of autocast")
        if any(root.dtypes != ("float32",) for root in profile.roots):
            return Applies(reason="the model's parameters are in a reduced precision themselves")
        if profile.own_compile:
            return Applies(reason="the script compiles its model with autocast in it")
        return Applies(values=(True,))

    def enable(self, seams: Seams, value: Value) -> None:
        """From the next call on."""
        for root in seams.roots:
            root.autocast("float32")

    def disable(self, seams: Seams) -> None:
        """As the script has it."""
        for root in seams.roots:
            root.autocast(None)

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """Some root was called."""
        return None if any(root.calls for root in seams.roots) else "no root was called"
