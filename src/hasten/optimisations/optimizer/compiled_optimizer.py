"""Compile the optimizer's step with torch.compile.

What it does
    The step of every optimizer of torch.optim runs through `torch.compile`, under the same step
    hooks and schedulers. A learning rate that changes is compiled once as a variable.

Why it is faster
    All that a step does to a parameter becomes one kernel over it, where the plain
    implementation reads and writes it a dozen times, and there is no Python for each parameter.

When it helps
    Optimizers that have no fused implementation (RMSprop, Adadelta, Adamax, NAdam, RAdam, Rprop,
    ASGD), and models of many small parameters. Compiling takes from seconds to minutes.

Numerics
    Class `rounding`: the same formula, fused and reordered.

Example
    step = torch.compile(optimizer.step)

Source
    PyTorch tutorials, "(beta) Compiling the optimizer with torch.compile".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.records import Profile, Value

if TYPE_CHECKING:
    from hasten.environment import Environment


_MOST = 6  # steps that compile: state that appears, a rate that becomes a variable
_WORTH = 0.03  # of an iteration; below it nothing can be won that would be seen


class CompiledOptimizer(Optimisation):
    """torch.compile around every optimizer's step."""

    name: ClassVar[str] = "compiled-optimizer"
    numerics: ClassVar[Numerics] = Numerics.ROUNDING
    fixes: ClassVar[tuple[str, ...]] = ("optimizer-bound",)
    order: ClassVar[int] = 45
    warmup: ClassVar[int] = 2
    excludes: ClassVar[tuple[str, ...]] = ("fused-optimizer",)
    needs: ClassVar[str] = "optimizers"
    compiles: ClassVar[bool] = True

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Optimizers of torch.optim where a compiler is at hand and the step takes time."""
        if not profile.optimizers:
            return Applies(reason="no optimizer of torch.optim steps")
        if profile.device == "cpu" and not environment.compiler:
            return Applies(reason="no C++ compiler was found, which compiling for the CPU needs")
        for optimizer in profile.optimizers:
            if optimizer.closure:
                return Applies(reason=f"{optimizer.name} steps through a closure")
            if not optimizer.known:
                return Applies(reason=f"{optimizer.name} is not one of torch.optim's own classes")
            if optimizer.sparse:
                return Applies(reason="gradients are sparse, which compiled steps don't know")
            if optimizer.fused:
                return Applies(reason="the script already uses the fused implementation")
            if optimizer.compilable:
                return Applies(reason=f"{optimizer.name}: {optimizer.compilable}")
        if profile.phases.get("optimizer", 0.0) < _WORTH * profile.iteration:
            return Applies(reason="the optimizer's step is less than 3 % of an iteration")
        return Applies(values=(True,))

    def enable(self, seams: Seams, value: Value) -> None:
        """Compile at the next step, or go back to what was compiled before."""
        for optimizer in seams.optimizers:
            optimizer.compile(True)

    def disable(self, seams: Seams) -> None:
        """Steps run as the script has them."""
        for optimizer in seams.optimizers:
            optimizer.compile(False)

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """It has stepped, and something was compiled."""
        from torch._dynamo.utils import counters

        if not any(optimizer.steps for optimizer in seams.optimizers):
            return "no optimizer has stepped"
        if any(optimizer.compilations > _MOST for optimizer in seams.optimizers):
            return "each new learning rate is compiled anew"
        if any("limit" in text for text in counters["unimplemented"]):
            return "dynamo has gone back to eager: too many variants were compiled"
        return None if counters["frames"]["ok"] else "nothing was compiled"
