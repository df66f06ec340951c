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

from typing import ClassVar

from hasten.optimisations.loader._delivered import Delivered
from hasten.records import LoaderFacts


class PinnedMemory(Delivered):
    """Batches in page-locked memory."""

    name: ClassVar[str] = "pinned-memory"
    order: ClassVar[int] = 26
    excludes: ClassVar[tuple[str, ...]] = ("device-prefetch",)
    place: ClassVar[str] = "pinned"
    idle: ClassVar[str] = "batches hold no tensor that could be pinned"

    def needless(self, loader: LoaderFacts) -> str:
        """It pins by itself."""
        return "the loader already pins its batches" if loader.pinned else ""
