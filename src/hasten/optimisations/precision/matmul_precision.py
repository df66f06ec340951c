"""Let products of float32 matrices be computed in less than float32.

What it does
    Sets torch's float32 matmul precision: "high" allows TF32 on GPUs, "medium" allows oneDNN to
    compute in bfloat16 on CPUs. Tensors stay float32, sums are kept in float32.

Why it is faster
    Tensor cores and matrix units of CPUs take TF32 or bfloat16 inputs at several times the rate
    of float32. On CPUs oneDNN then also takes over products that another library computed.

When it helps
    Models that are bound by matrix products, on GPUs from NVIDIA's Ampere on and CPUs with AMX
    or avx512_bf16. What a CPU makes of it differs: some compute in float32 all the same.

Numerics
    Class `rounding`: inputs of products are rounded to 10 (TF32) or 7 (bfloat16) bits of
    mantissa. The gradient's error is measured on the model itself.

Example
    torch.set_float32_matmul_precision("high")

Source
    PyTorch, "torch.set_float32_matmul_precision"; PyTorch, "CUDA semantics", on TF32; oneDNN
    developer guide, "Floating-point math mode".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.records import Profile, Value

if TYPE_CHECKING:
    from hasten.environment import Environment


class MatmulPrecision(Optimisation):
    """torch's precision of float32 products."""

    name: ClassVar[str] = "matmul-precision"
    numerics: ClassVar[Numerics] = Numerics.ROUNDING
    fixes: ClassVar[tuple[str, ...]] = ("compute-bound",)
    order: ClassVar[int] = 16
    needs: ClassVar[str] = "roots"

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Models in float32 on hardware that has something quicker."""
        if not profile.roots:
            return Applies(reason="no module is called through __call__ with gradients on")
        if all("float32" not in root.dtypes for root in profile.roots):
            return Applies(reason=f"the model is in {', '.join(profile.roots[0].dtypes)}")
        if profile.device == "cpu":
            return self._on_cpu(profile, environment)
        if profile.device != "cuda":
            return Applies(reason=f"{profile.device} has no reduced precision of float32 products")
        if profile.float32_precision != "highest":
            return Applies(reason=f"the script has set it to {profile.float32_precision} itself")
        return Applies(values=("high",))

    @staticmethod
    def _on_cpu(profile: Profile, environment: Environment) -> Applies:
        if not environment.cpu_bf16:
            return Applies(reason="this CPU has no bf16 instructions (avx512_bf16, amx_bf16)")
        if profile.float32_precision in ("medium", "mixed"):
            return Applies(reason=f"the script has set it to {profile.float32_precision} itself")
        return Applies(values=("medium",))

    def enable(self, seams: Seams, value: Value) -> None:
        """Set it for the process."""
        seams.flags.set_float32_precision(value)

    def disable(self, seams: Seams) -> None:
        """Back to what the script has."""
        seams.flags.set_float32_precision(None)

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """torch reports it."""
        now = seams.flags.float32_precision
        return None if now in (value, "mixed") else f"the precision is {now}"

    def check(self, value: Value) -> None:
        """One of torch's three names."""
        if value not in ("highest", "high", "medium"):
            raise ValueError('"highest", "high" or "medium"')
