"""What of a setting must be in force before the loop is known: from the script's first line on."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from hasten.instrument.conductor import Conductor
from hasten.records import Setting

#: Units that save memory: without them there might be no second iteration.
_MEMORY = ("micro-batches", "checkpoint-blocks")

# Of mallopt(3). Once set, glibc doesn't change the threshold by itself any more.
_MMAP_THRESHOLD, _LARGE = -3, 1 << 20


def ahead(conductor: Conductor, setting: Setting) -> None:
    """Put in what can't wait; the conductor takes it over when it knows the loop."""
    if isinstance(wanted := setting.get("batch-size"), dict):
        from hasten.instrument.seams.batch_size import BatchSizes

        sizes = BatchSizes(wanted)
        sizes.install()
        if factors := wanted.get("lr"):
            from hasten.instrument.seams.rates import ScaledRates

            ScaledRates(factors, lambda: sizes.changed > 0).install()
    early: dict[str, Any] = {name: setting[name] for name in _MEMORY if name in setting}
    if early:
        from hasten.instrument.seams.early import EarlyCalls

        calls = EarlyCalls(early.get("micro-batches"), early.get("checkpoint-blocks"))
        calls.install()
        if "retain-heap" not in setting:
            give_back()
        conductor.take_over(calls.uninstall, early)


def give_back() -> None:
    """Have glibc map every tensor of a megabyte and more by itself, so that all of it goes back.

    glibc takes tensors of up to 32 MB from its heap once some of them were freed. Aligned as torch
    wants them, a hole that one has left is too small for the next one of the same size: a process
    was seen to take 0.6 GB for tensors of 0.2 GB, and no part of a batch is small enough to help.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_MMAP_THRESHOLD, _LARGE)
