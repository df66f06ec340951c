"""Batches on their way from workers do not fit in the shared memory.

What it is
    Workers pass batches through `/dev/shm`, which containers often limit to 64 MiB.

Why it costs
    A worker that can't write there is killed by a bus error, at a batch that nobody can
    foresee.

How it is measured
    Bytes of a batch times the batches that are on their way, against the size of `/dev/shm`.
    It costs no time until the run dies, so no time is claimed.

What to do
    Start the container with a larger `--shm-size`, or use fewer workers or a smaller prefetch
    factor.

Source
    PyTorch issues 5040 and 16979; the documentation of Docker's `--shm-size`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, Kind, place_from

_MIB = 2**20


class SharedMemoryTooSmall(Finding):
    """A `/dev/shm` that batches in flight can fill."""

    name: ClassVar[str] = "shared-memory-too-small"
    subject: ClassVar[str] = "memory"
    kind: ClassVar[Kind] = Kind.RISK

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """The need is above the size."""
        loader, facts = diagnosis.profile.loader, diagnosis.observed.facts.get("loaders", {})
        size, batch = diagnosis.environment.shm, facts.get("batch_bytes", 0)
        if loader is None or not loader.workers or size is None:
            return
        flight = loader.in_flight + 1  # one is with the training
        need = flight * batch
        if need <= size:
            return
        yield Found(
            summary="batches on their way do not fit in /dev/shm",
            todo=f"a larger --shm-size (at least {2 * need // _MIB + 1} MiB), or fewer workers",
            evidence=(
                f"{flight} batches of {batch / _MIB:.1f} MiB need "
                f"{need / _MIB:.0f} MiB, /dev/shm has {size / _MIB:.0f} MiB",
            ),
            place=place_from(facts.get("made")),
        )
