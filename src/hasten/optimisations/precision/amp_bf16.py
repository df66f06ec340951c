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
    large, the module with the largest error is tried in float32 (`{ float32 = ["head"] }`).

Example
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output = model(batch)

Source
    PyTorch, "Automatic Mixed Precision package - torch.amp"; Kalamkar et al., "A Study of
    BFLOAT16 for Deep Learning Training" (2019).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.optimisations.precision import _kept
from hasten.records import Profile, Proof, Value

if TYPE_CHECKING:
    from hasten.environment import Environment


class AmpBf16(Optimisation):
    """Autocast to bfloat16 around every root's training calls."""

    name: ClassVar[str] = "amp-bf16"
    numerics: ClassVar[Numerics] = Numerics.ROUNDING
    fixes: ClassVar[tuple[str, ...]] = ("compute-bound",)
    order: ClassVar[int] = 10
    likely: ClassVar[bool] = True
    needs: ClassVar[str] = "roots"

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Models in float32 on hardware that computes in bfloat16."""
        if not profile.roots and profile.own_compile:
            return Applies(
                reason="the script compiles a function of its own, and what runs inside one "
                "can't be changed from outside"
            )
        if not profile.roots:
            return Applies(reason="no module is called through __call__ with gradients on")
        own = [root.own_autocast for root in profile.roots if root.own_autocast]
        if own:
            return Applies(reason=f"the script already runs the model under autocast ({own[0]})")
        if profile.own_scaler:
            return Applies(reason="the script scales its loss with a GradScaler of its own")
        if all("float32" not in root.dtypes for root in profile.roots):
            return Applies(reason=f"the model is in {', '.join(profile.roots[0].dtypes)}")
        if profile.device == "cpu" and not environment.cpu_bf16:
            return Applies(
                reason="this CPU has no bf16 instructions (avx512_bf16, amx_bf16), without "
                "which bfloat16 is many times slower"
            )
        return Applies(values=(True,))

    def enable(self, seams: Seams, value: Value) -> None:
        """Autocast from the next call on."""
        for root in seams.roots:
            root.autocast("bfloat16", keep=_kept.kept(value))

    def disable(self, seams: Seams) -> None:
        """Calls run in the script's own precision."""
        for root in seams.roots:
            root.autocast(None)

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """Some call has computed in bfloat16."""
        if not any(root.calls for root in seams.roots):
            return "no root was called"
        if not any(root.reduced_calls for root in seams.roots):
            return "autocast changed no operation of the model"
        return None

    def remedies(self, value: Value, proof: Proof) -> tuple[Value, ...]:
        """The module with the worst error in float32."""
        return _kept.remedies(value, proof)

    def check(self, value: Value) -> None:
        """`true`, or modules that are kept in float32."""
        _kept.check(value)
