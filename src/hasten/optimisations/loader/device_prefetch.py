"""Copy batches to the device on a stream of their own, while it still computes.

What it does
    Every tensor of a batch, however nested, is copied into page-locked memory and from there to
    the device on a second stream, before the script gets it; the script's own copy then has
    nothing left to do.

Why it is faster
    The device copies and computes at the same time: the copy begins while the previous iteration
    is still being computed, instead of after it.

When it helps
    Large batches, and scripts that don't wait for the device in every iteration. On a CPU there
    is nothing to copy.

Numerics
    Class `exact`: the same batches. A script that treats a batch as numpy arrays raises an
    exception, and the candidate is dropped.

Example
    with torch.cuda.stream(side):
        batch = batch.pin_memory().to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(side)

Source
    PyTorch, "CUDA semantics", on streams and record_stream; the prefetchers of NVIDIA's apex and
    of timm are the same idea.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.records import Profile, Value

if TYPE_CHECKING:
    from hasten.environment import Environment


class DevicePrefetch(Optimisation):
    """Batches are on the device when the script gets them."""

    name: ClassVar[str] = "device-prefetch"
    numerics: ClassVar[Numerics] = Numerics.EXACT
    order: ClassVar[int] = 25
    likely: ClassVar[bool] = True
    warmup: ClassVar[int] = 2
    excludes: ClassVar[tuple[str, ...]] = ("pinned-memory",)
    needs: ClassVar[str] = "loader"

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Training on a CUDA device from a DataLoader."""
        if profile.loader is None:
            return Applies(reason="the script trains without a DataLoader")
        if profile.device != "cuda":
            return Applies(
                reason=f"batches aren't copied to a GPU: training is on {profile.device}"
            )
        return Applies(values=(True,))

    def enable(self, seams: Seams, value: Value) -> None:
        """Copy from the next batch on."""
        if seams.loader is not None:
            seams.loader.delivery.set("device", seams.device)

    def disable(self, seams: Seams) -> None:
        """Batches as they come."""
        if seams.loader is not None:
            seams.loader.delivery.set(None, seams.device)

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """Some tensor was copied."""
        moved = seams.loader.delivery.moved if seams.loader is not None else 0
        return None if moved else "batches hold no tensor that isn't on the device already"

    def check(self, value: Value) -> None:
        """`true` is the only value."""
        if value is not True:
            raise ValueError("true")
