"""Batches are copied to the accelerator from memory that is not page-locked.

What it is
    Tensors go from the host to the accelerator every iteration without `pin_memory=True`.

Why it costs
    The driver has to copy them into memory of its own first, and the program waits for that.

How it is measured
    A copy of as many bytes from pinned and from other memory, timed on this machine. (Not yet
    seen on a GPU.)

What to do
    `DataLoader(..., pin_memory=True)` and `.to(device, non_blocking=True)`.

Source
    PyTorch tutorial, "A guide on good usage of non_blocking and pin_memory".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, milliseconds

_OFTEN = 0.5  # copies an iteration


class UnpinnedCopies(Finding):
    """Copies from memory that the driver can't read by itself."""

    name: ClassVar[str] = "unpinned-copies"
    subject: ClassVar[str] = "device"
    needs_gpu: ClassVar[bool] = True

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Unpinned batches, and pinned ones are faster here."""
        seen = diagnosis.observed
        rates = diagnosis.examined.facts.get("copy_rates")  # bytes a second
        copies = [
            event
            for event in seen.all("copy")
            if event.facts.get("source") == "cpu"
            and not event.facts.get("pinned")
            and not event.facts.get("parameter")
            and seen.per_iteration(event) >= _OFTEN
        ]
        if not copies or not rates:
            return
        size = sum(seen.per_iteration(e) * e.facts.get("bytes", 0) for e in copies)
        gain = size / rates["pageable"] - size / rates["pinned"]
        yield Found(
            summary="batches are copied from memory that is not pinned",
            todo="DataLoader(..., pin_memory=True) and .to(device, non_blocking=True)",
            evidence=(
                f"{size / 2**20:.1f} MiB an iteration; pinned "
                f"{milliseconds(size / rates['pinned'])}, as it is "
                f"{milliseconds(size / rates['pageable'])}",
            ),
            place=max(copies, key=lambda e: e.facts.get("bytes", 0)).place,
            cost=gain,
        )
