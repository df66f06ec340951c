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

from typing import ClassVar

from hasten.optimisations.loader._delivered import Delivered


class DevicePrefetch(Delivered):
    """Batches are on the device when the script gets them."""

    name: ClassVar[str] = "device-prefetch"
    order: ClassVar[int] = 25
    excludes: ClassVar[tuple[str, ...]] = ("pinned-memory",)
    place: ClassVar[str] = "device"
    idle: ClassVar[str] = "batches hold no tensor that isn't on the device already"
