"""Step all parameters in one kernel (fused), or in a few batched ones (foreach).

What it does
    Switches the `fused` or `foreach` flag of every parameter group, and moves the state to
    where that implementation wants it.

Why it is faster
    The plain implementation runs a dozen small operations for each parameter; fused reads
    and writes every value once, foreach starts a kernel for many parameters at a time.

When it helps
    Models with many or large parameters and a quick forward pass.

Numerics
    Class `rounding`: the same formula in another order of operations.

Example
    torch.optim.AdamW(model.parameters(), fused=True)

Source
    PyTorch, "torch.optim", table of foreach and fused implementations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.records import OptimizerFacts, Profile, Proof, Value

if TYPE_CHECKING:
    from hasten.environment import Environment


class FusedOptimizer(Optimisation):
    """The implementation of the optimizer's step."""

    name: ClassVar[str] = "fused-optimizer"
    numerics: ClassVar[Numerics] = Numerics.ROUNDING
    fixes: ClassVar[tuple[str, ...]] = ("optimizer-bound",)
    order: ClassVar[int] = 20
    likely: ClassVar[bool] = True
    one_by_one: ClassVar[bool] = True  # fused reads and writes least wherever it exists
    needs: ClassVar[str] = "optimizers"

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Optimizers of torch.optim that have another implementation."""
        if not profile.optimizers:
            return Applies(reason="no optimizer of torch.optim steps")
        values = [
            value
            for value, able in (("fused", _could_fuse), ("foreach", _could_foreach))
            if any(able(optimizer, profile.device) for optimizer in profile.optimizers)
        ]
        if values:
            return Applies(values=tuple(values))
        first = profile.optimizers[0]
        if first.closure:
            return Applies(reason=f"{first.name} steps through a closure and has one form only")
        if not first.known:
            return Applies(reason=f"{first.name} is not one of torch.optim's own classes")
        if first.fused:
            return Applies(reason="the script already uses the fused implementation")
        return Applies(reason=f"{first.name} has no fused or foreach implementation here")

    def enable(self, seams: Seams, value: Value) -> None:
        """Switch every optimizer that has this implementation."""
        for optimizer in seams.optimizers:
            if value != "fused" or optimizer.supports_fused:
                optimizer.implementation(value)

    def disable(self, seams: Seams) -> None:
        """Back to the script's implementation."""
        for optimizer in seams.optimizers:
            optimizer.implementation(None)

    def remedies(self, value: Value, proof: Proof) -> tuple[Value, ...]:
        """The batched operations in place of the one kernel."""
        return ("foreach",) if value == "fused" else ()

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """Some optimizer has stepped with it."""
        return None if any(o.steps for o in seams.optimizers) else "no optimizer has stepped"

    def check(self, value: Value) -> None:
        """One of torch's three implementations."""
        if value not in ("fused", "foreach", "forloop"):
            raise ValueError('"fused", "foreach" or "forloop"')


def _could_fuse(optimizer: OptimizerFacts, device: str) -> bool:
    return optimizer.supports_fused and not optimizer.fused and not optimizer.sparse


def _could_foreach(optimizer: OptimizerFacts, device: str) -> bool:
    # On accelerators torch chooses foreach by itself unless the script says otherwise.
    default = optimizer.foreach is None and device != "cpu"
    able = optimizer.known and not optimizer.closure and not optimizer.sparse
    return able and not optimizer.foreach and not optimizer.fused and not default
