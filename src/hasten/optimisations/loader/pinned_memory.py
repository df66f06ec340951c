"""Hand batches out in page-locked memory.

What it does
    Copies each batch into page-locked memory before the script gets it.

Why it is faster
    The driver copies from such memory to the device by itself, without a detour; and only from
    there does `to(device, non_blocking=True)` return before the copy is done.

When it helps
    Large batches that the script copies with `non_blocking=True`. Otherwise the additional copy
    costs about what it saves. On a CPU there is no device to copy to.

Numerics
    Class `exact`: the same batches.

Example
    DataLoader(dataset, batch_size=64, pin_memory=True)

Source
    PyTorch tutorials, "A guide on good usage of non_blocking and pin_memory() in PyTorch".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.records import Profile, Value

if TYPE_CHECKING:
    from hasten.environment import Environment


class PinnedMemory(Optimisation):
    """Batches in page-locked memory."""

    name: ClassVar[str] = "pinned-memory"
    numerics: ClassVar[Numerics] = Numerics.EXACT
    order: ClassVar[int] = 26
    likely: ClassVar[bool] = True
    warmup: ClassVar[int] = 2
    excludes: ClassVar[tuple[str, ...]] = ("device-prefetch",)
    needs: ClassVar[str] = "loader"

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Training on a CUDA device from a DataLoader that doesn't pin."""
        if profile.loader is None:
            return Applies(reason="the script trains without a DataLoader")
        if profile.device != "cuda":
            return Applies(
                reason=f"batches aren't copied to a GPU: training is on {profile.device}"
            )
        if profile.loader.pinned:
            return Applies(reason="the loader already pins its batches")
        return Applies(values=(True,))

    def enable(self, seams: Seams, value: Value) -> None:
        """Pin from the next batch on."""
        if seams.loader is not None:
            seams.loader.delivery.set("pinned", seams.device)

    def disable(self, seams: Seams) -> None:
        """Batches as they come."""
        if seams.loader is not None:
            seams.loader.delivery.set(None, seams.device)

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """Some tensor was pinned."""
        moved = seams.loader.delivery.moved if seams.loader is not None else 0
        return None if moved else "batches hold no tensor that could be pinned"

    def check(self, value: Value) -> None:
        """`true` is the only value."""
        if value is not True:
            raise ValueError("true")
