"""Clear gradients to None instead of filling them with zeros.

What it does
    Where the script calls `zero_grad(set_to_none=False)`, on an optimizer or on the model,
    gradients are dropped. A parameter that the next backward pass doesn't reach gets its zeros
    before the step, so that momentum and weight decay go on as they did.

Why it is faster
    Filling with zeros writes every gradient once, and the backward pass then reads it and adds
    to it. Without, a gradient is written once.

When it helps
    Scripts that fill with zeros, the more the larger the model is against its batches.

Numerics
    Class `exact`: the same values; 0 + g is g. A zero may change its sign. Code that reads a
    gradient between `zero_grad` and the backward pass finds None.

Example
    optimizer.zero_grad(set_to_none=True)

Source
    PyTorch performance tuning guide, "Use parameter.grad = None instead of model.zero_grad()".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.records import Profile, Value

if TYPE_CHECKING:
    from hasten.environment import Environment


class GradsToNone(Optimisation):
    """`zero_grad` drops gradients instead of filling them."""

    name: ClassVar[str] = "grads-to-none"
    numerics: ClassVar[Numerics] = Numerics.EXACT
    order: ClassVar[int] = 22
    likely: ClassVar[bool] = True
    needs: ClassVar[str] = "optimizers"

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Scripts that fill with zeros, and whose steps find every parameter reached."""
        if not profile.optimizers:
            return Applies(reason="no optimizer of torch.optim steps")
        if not profile.zero_fills:
            return Applies(reason="the script never fills gradients with zeros")
        if profile.untouched:
            return Applies(
                reason=f"`{profile.untouched[:80]}` gets no gradient in some iterations: momentum "
                "and weight decay go on with zeros, and pause with None"
            )
        return Applies(values=(True,))

    def enable(self, seams: Seams, value: Value) -> None:
        """Clear to None from now on."""
        seams.clearing.to_none(True)

    def disable(self, seams: Seams) -> None:
        """Fill with zeros again, also what has been cleared meanwhile."""
        seams.clearing.to_none(False)

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """The script has asked for zeros."""
        return None if seams.clearing.filled else "zero_grad was not asked to fill with zeros"
