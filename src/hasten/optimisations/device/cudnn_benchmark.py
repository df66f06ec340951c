"""Let cuDNN measure its convolution algorithms, or stop it from doing so again and again.

What it does
    Turns `torch.backends.cudnn.benchmark` on where shapes stay the same, and off where the script
    has it on although shapes vary.

Why it is faster
    cuDNN has several algorithms for a convolution and guesses which is quickest. Measuring them
    once for a shape finds the best; where every batch has another shape it measures all the time.

When it helps
    Convolutional networks on NVIDIA's GPUs with batches of one size.

Numerics
    Class `rounding`: another algorithm adds in another order, and may differ between runs.

Example
    torch.backends.cudnn.benchmark = True

Source
    PyTorch performance tuning guide, "Enable cuDNN auto-tuner".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.records import Profile, Value

if TYPE_CHECKING:
    from hasten.environment import Environment


class CudnnBenchmark(Optimisation):
    """cuDNN's choice of algorithms."""

    name: ClassVar[str] = "cudnn-benchmark"
    numerics: ClassVar[Numerics] = Numerics.ROUNDING
    order: ClassVar[int] = 17
    warmup: ClassVar[int] = 4
    needs: ClassVar[str] = "roots"

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Convolutions on a CUDA device, with the switch on the wrong side."""
        if not profile.roots:
            return Applies(reason="no module is called through __call__ with gradients on")
        if profile.device != "cuda":
            return Applies(reason=f"cuDNN isn't used on {profile.device}")
        if not any(root.convolutions for root in profile.roots):
            return Applies(reason="the model has no two-dimensional convolution")
        vary = any(root.shapes_vary for root in profile.roots)
        if vary == profile.cudnn_benchmark:
            return Applies(values=(not vary,))
        return Applies(reason="shapes vary" if vary else "the script has turned it on already")

    def enable(self, seams: Seams, value: Value) -> None:
        """From the next convolution on."""
        seams.flags.set_cudnn_benchmark(value)

    def disable(self, seams: Seams) -> None:
        """As the script has it."""
        seams.flags.set_cudnn_benchmark(None)

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """torch reports it."""
        return None if seams.flags.cudnn_benchmark == value else "the script has set it again"

    def check(self, value: Value) -> None:
        """On or off."""
        if not isinstance(value, bool):
            raise ValueError("true or false")
