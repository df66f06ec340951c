"""Run the model under autocast in bfloat16.

What it does
    Calls of every root module run under `torch.autocast` with dtype bfloat16; results are cast
    back to float32, so that the loss and metrics are computed as before. Weights, gradients and
    optimizer state stay float32. Validation runs as the script has it.

Why it is faster
    Matrix products and convolutions in bfloat16 move half the bytes and run on units that
    are made for it: tensor cores on GPUs, avx512_bf16 or AMX on CPUs.

When it helps
    Models that are bound by matrix products or convolutions. Small layers lose, since the casts
    cost more than they save; a CPU without bf16 instructions is slower by far.

Numerics
    Class `rounding`. bfloat16 keeps float32's range with 8 bits of precision, so no loss scaling
    is needed. The gradient's error against float32 is measured on the model itself. Where it is too
    large, the module with the largest error is tried in float32 (`{ float32 = ["head"] }`), then
    losses, softmax and sums inside of the model (`{ functions = "float32" }`).

Example
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output = model(batch)

Source
    PyTorch, "Automatic Mixed Precision package - torch.amp"; Kalamkar et al., "A Study of
    BFLOAT16 for Deep Learning Training" (2019).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies
from hasten.optimisations.precision._reduced import Reduced
from hasten.records import Profile

if TYPE_CHECKING:
    from hasten.environment import Environment


class AmpBf16(Reduced):
    """Autocast to bfloat16 around every root's training calls."""

    name: ClassVar[str] = "amp-bf16"
    order: ClassVar[int] = 10
    likely: ClassVar[bool] = True
    dtype: ClassVar[str] = "bfloat16"

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Models in float32 on hardware that computes in bfloat16."""
        if not profile.roots and profile.own_compile:
            return Applies(
                reason="the script compiles a function of its own, and what runs inside one "
                "can't be changed from outside"
            )
        if reason := self.unsuited(profile):
            return Applies(reason=reason)
        if all("float32" not in root.dtypes for root in profile.roots):
            return Applies(reason=f"the model is in {', '.join(profile.roots[0].dtypes)}")
        if profile.device == "cpu" and not environment.cpu_bf16:
            return Applies(
                reason="this CPU has no bf16 instructions (avx512_bf16, amx_bf16), without "
                "which bfloat16 is many times slower"
            )
        return Applies(values=(True,))
