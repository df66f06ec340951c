"""Record the model's kernels once as CUDA graphs, and play them back.

What it does
    Calls of every root module run through dynamo with its `cudagraphs` backend: the same kernels
    as in eager mode, launched as one graph forward and one backward.

Why it is faster
    Launching a kernel costs the CPU some microseconds. Where kernels are shorter than that, the
    GPU waits for the CPU; a graph is launched as a whole.

When it helps
    Small models and small batches on fast GPUs, with shapes that stay the same. `compile` with
    mode "reduce-overhead" adds fused kernels to it.

Numerics
    Class `rounding`: the same kernels on the same values; which algorithm is chosen may differ.
    Graphs keep their memory for as long as they live.

Example
    model.compile(backend="cudagraphs")

Source
    PyTorch blog, "Accelerating PyTorch with CUDA Graphs" (2021).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.records import Profile, Value

if TYPE_CHECKING:
    from hasten.environment import Environment


class CudaGraphs(Optimisation):
    """CUDA graphs around every root's training calls."""

    name: ClassVar[str] = "cuda-graphs"
    numerics: ClassVar[Numerics] = Numerics.ROUNDING
    fixes: ClassVar[tuple[str, ...]] = ("launch-bound",)
    order: ClassVar[int] = 42
    warmup: ClassVar[int] = 4
    after: ClassVar[tuple[str, ...]] = ("amp-bf16", "amp-fp16", "channels-last", "matmul-precision")
    excludes: ClassVar[tuple[str, ...]] = ("compile",)
    needs: ClassVar[str] = "roots"
    compiles: ClassVar[bool] = True

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Eager models on a CUDA device with shapes that stay the same."""
        if any(root.own_compile for root in profile.roots) or profile.own_compile:
            return Applies(reason="the script already compiles the model")
        if not profile.roots:
            return Applies(reason="no module is called through __call__ with gradients on")
        if profile.device != "cuda":
            return Applies(reason=f"there are no CUDA graphs on {profile.device}")
        if any(root.shapes_vary for root in profile.roots):
            return Applies(reason="shapes vary, and a graph has fixed ones")
        return Applies(values=(True,))

    def enable(self, seams: Seams, value: Value) -> None:
        """Record at the next calls."""
        for root in seams.roots:
            root.compile({"backend": "cudagraphs"})

    def disable(self, seams: Seams) -> None:
        """Calls launch kernel by kernel."""
        for root in seams.roots:
            root.compile(None)

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """Something was captured, and dynamo has not given up on it."""
        captured, _, fallbacks = seams.roots[0].graphs
        if not captured:
            return "nothing was captured"
        return "dynamo has gone back to eager" if fallbacks else None
