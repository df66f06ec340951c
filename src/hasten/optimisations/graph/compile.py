"""Compile the model with torch.compile, in place.

What it does
    Calls of every root module run through `torch.compile`; the module object, its
    parameters and its checkpoint keys stay as they are. Shapes that vary are compiled once as
    dynamic ones. Models of one class share their code, and dynamo would take the other model's
    shapes for shapes that vary: they are compiled as static ones. Random numbers are drawn as
    eager code draws them. On GPUs the modes "reduce-overhead" (CUDA graphs) and "max-autotune"
    (kernels chosen by measuring) are tried too.

Why it is faster
    Chains of small operations become one kernel each, which saves memory traffic and, on GPUs,
    launches.

When it helps
    Models with many element-wise operations between large ones. Compilation takes from seconds
    to minutes: the pay-back says after how many iterations that is won back.

Numerics
    Class `rounding`: the same maths, fused and reordered.

Example
    model.compile()

Source
    Ansel et al., "PyTorch 2: Faster Machine Learning Through Dynamic Python Bytecode
    Transformation and Graph Compilation" (ASPLOS 2024).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.records import Profile, Value

if TYPE_CHECKING:
    from hasten.environment import Environment


_MODES = ("reduce-overhead", "max-autotune")


class Compile(Optimisation):
    """torch.compile around every root's training calls."""

    name: ClassVar[str] = "compile"
    numerics: ClassVar[Numerics] = Numerics.ROUNDING
    fixes: ClassVar[tuple[str, ...]] = ("launch-bound", "compute-bound")
    order: ClassVar[int] = 40
    warmup: ClassVar[int] = 2
    after: ClassVar[tuple[str, ...]] = ("amp-bf16", "amp-fp16", "channels-last", "matmul-precision")
    needs: ClassVar[str] = "roots"
    compiles: ClassVar[bool] = True

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Eager models where a compiler is at hand."""
        if any(root.own_compile for root in profile.roots):
            return Applies(reason="the script already compiles the model")
        if profile.own_compile:
            return Applies(reason="the script already compiles a function of its own")
        if not profile.roots:
            return Applies(reason="no module is called through __call__ with gradients on")
        if profile.device == "cpu" and not environment.compiler:
            return Applies(reason="no C++ compiler was found, which compiling for the CPU needs")
        vary = any(root.shapes_vary for root in profile.roots)
        usual: Value = {"dynamic": True} if vary else {}
        names = [root.name for root in profile.roots]
        if not vary and len(set(names)) < len(names):
            usual = {"dynamic": False}
        # CUDA graphs and tuned kernels are there for GPUs, and for shapes that stay the same.
        modes = _MODES if profile.device == "cuda" and not vary else ()
        return Applies(values=(usual, *({"mode": mode} for mode in modes)))

    def enable(self, seams: Seams, value: Value) -> None:
        """Compile at the next call, or go back to what was compiled before."""
        value = dict(value)
        chosen: dict[str, Any] = {"fallback_random": True}
        if mode := value.pop("mode", None):
            from torch._inductor import list_mode_options

            # torch.compile takes a mode or options; a mode is nothing but some options.
            chosen = {**list_mode_options(mode), **chosen}
        options = {**value, "options": chosen}
        for root in seams.roots:
            root.compile(options)

    def disable(self, seams: Seams) -> None:
        """Calls run in eager mode."""
        for root in seams.roots:
            root.compile(None)

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """Something was compiled, and dynamo has not given up on it."""
        compiled, _, fallbacks = seams.roots[0].graphs
        if not compiled:
            return "nothing was compiled"
        if fallbacks:
            return "dynamo has gone back to eager: too many variants were compiled"
        return None

    def check(self, value: Value) -> None:
        """A table that may hold `dynamic` and `mode`."""
        if not isinstance(value, dict) or set(value) - {"dynamic", "mode"}:
            raise ValueError("a table such as { dynamic = true }, or an empty one")
        if value.get("mode", _MODES[0]) not in _MODES:
            raise ValueError('mode = "reduce-overhead" or "max-autotune"')
        if not isinstance(value.get("dynamic", False), bool):
            raise ValueError("dynamic = true or false")
