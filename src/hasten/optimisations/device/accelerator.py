"""Train on the accelerator that the script leaves idle.

What it does
    Moves the root modules, their gradients and optimizer state to the accelerator, and every
    batch with them; what the modules return comes back to the CPU, where the script goes on.

Why it is faster
    An accelerator multiplies matrices tens to hundreds of times faster than a CPU.

When it helps
    Scripts that were written on a machine without one, or that forget `.to(device)`. Very small
    models lose by the copies. Writing the device into the script saves the way back as well.

Numerics
    Class `rounding`: the same operations by other kernels. Dropout draws from the accelerator's
    random numbers, which are others.

    `hasten tune` says where an accelerator is idle, and tries it with `--device cuda`.

Example
    device = torch.accelerator.current_accelerator()
    model.to(device)
    output = model(batch.to(device))

Source
    PyTorch, "torch.accelerator".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.records import Profile, Value

if TYPE_CHECKING:
    from hasten.environment import Environment


class Accelerator(Optimisation):
    """Roots on a device that the script doesn't use."""

    name: ClassVar[str] = "accelerator"
    numerics: ClassVar[Numerics] = Numerics.ROUNDING
    order: ClassVar[int] = 1
    moves: ClassVar[bool] = True
    warmup: ClassVar[int] = 4
    needs: ClassVar[str] = "roots"

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Training on the CPU beside a GPU that torch can use."""
        if not profile.roots:
            return Applies(reason="no module is called through __call__ with gradients on")
        if profile.device != "cpu":
            return Applies(reason=f"the model is on {profile.device} already")
        if not environment.gpus:
            return Applies(reason="this machine has no GPU")
        if "+cpu" in profile.torch:
            return Applies(reason=f"torch {profile.torch} was built without support for GPUs")
        if profile.own_compile:
            return Applies(reason="the script compiles its model for the CPU")
        return Applies(values=("cuda",))

    def enable(self, seams: Seams, value: Value) -> None:
        """Move everything over."""
        for root in seams.roots:
            root.place(value)
        for optimizer in seams.optimizers:
            optimizer.follow()

    def disable(self, seams: Seams) -> None:
        """Move everything back."""
        for root in seams.roots:
            root.place(None)
        for optimizer in seams.optimizers:
            optimizer.follow()

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """Some root was called there."""
        there = [root for root in seams.roots if root.device == value]
        return None if any(root.calls for root in there) else f"no root was called on {value}"

    def check(self, value: Value) -> None:
        """A type of device."""
        if value not in ("cuda", "xpu", "mps"):
            raise ValueError('"cuda", "xpu" or "mps"')
