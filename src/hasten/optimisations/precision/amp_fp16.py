"""Run the model under autocast in float16, with scaled gradients.

What it does
    Calls of every root module run under `torch.autocast` with dtype float16. Backward passes
    start from a loss that is scaled by a power of two, and gradients are divided by it as they
    reach the parameters. A step whose gradients overflow is left out together with the
    schedulers' step, and the scale is halved.

Why it is faster
    As with bfloat16, products move half the bytes and run on units made for it. GPUs before
    Ampere have such units for float16 only.

When it helps
    GPUs without bfloat16 (V100, T4, RTX 20), and CPUs with float16 instructions (avx512_fp16,
    amx_fp16; convolutions the latter only). Elsewhere `amp-bf16` does the same without scaling.

Numerics
    Class `rounding`: float16 has 11 bits of precision but a narrow range, hence the scale.
    Clipping, accumulation and hooks on parameters see true gradients; gradients inside the model
    (backward hooks of modules, `retain_grad`) are scaled ones. A learning rate that the script
    computes by itself goes on when a step is left out.

Example
    scaler = torch.amp.GradScaler()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

Source
    Micikevicius et al., "Mixed Precision Training" (2018); PyTorch, "Automatic Mixed Precision
    examples".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies, Seams
from hasten.optimisations.precision._reduced import Reduced
from hasten.records import Profile, Value

if TYPE_CHECKING:
    from hasten.environment import Environment


_HALF = {"avx512_fp16", "amx_fp16", "asimdhp", "fphp", "sve"}


class AmpFp16(Reduced):
    """Autocast to float16 around every root's training calls, and loss scaling."""

    name: ClassVar[str] = "amp-fp16"
    order: ClassVar[int] = 14
    warmup: ClassVar[int] = 2
    excludes: ClassVar[tuple[str, ...]] = ("amp-bf16", "autocast-off")
    dtype: ClassVar[str] = "float16"

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Models in float32 that step through torch's optimizers, on hardware with float16."""
        if reason := self.unsuited(profile):
            return Applies(reason=reason)
        if any(root.dtypes != ("float32",) for root in profile.roots):
            return Applies(reason=f"the model is in {', '.join(profile.roots[0].dtypes)}")
        if not profile.optimizers:
            return Applies(reason="no optimizer of torch.optim steps: no step can be left out")
        for optimizer in profile.optimizers:
            if optimizer.closure or not optimizer.known:
                return Applies(
                    reason=f"{optimizer.name} gives no way to leave out a step that overflows"
                )
        if profile.device == "cpu" and not _HALF & set(environment.cpu_flags):
            return Applies(
                reason="this CPU has no float16 instructions (avx512_fp16, amx_fp16), without "
                "which float16 is many times slower"
            )
        if self._slow_convolutions(profile, environment):
            return Applies(
                reason="oneDNN has no fast backward pass of a float16 convolution for this CPU "
                "(that takes amx_fp16)"
            )
        return Applies(values=(True,))

    @staticmethod
    def _slow_convolutions(profile: Profile, environment: Environment) -> bool:
        """Measured on avx512_fp16: 130 times the float32 one, which no search need find out."""
        x86 = "avx512_fp16" in environment.cpu_flags and "amx_fp16" not in environment.cpu_flags
        convolutions = sum(root.convolutions for root in profile.roots)
        return profile.device == "cpu" and x86 and convolutions > 0

    def enable(self, seams: Seams, value: Value) -> None:
        """Autocast and scale from the next call on."""
        super().enable(seams, value)
        seams.scaling.set(True)

    def disable(self, seams: Seams) -> None:
        """Calls run in the script's own precision, gradients aren't scaled."""
        seams.scaling.set(False)
        super().disable(seams)

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """Some call has computed in float16, and a backward pass was scaled without trouble."""
        if idle := super().took_effect(seams, value):
            return idle
        if not seams.scaling.passes:
            return "no backward pass was scaled"
        return seams.scaling.trouble or None
