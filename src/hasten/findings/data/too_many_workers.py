"""More workers than the cores that may be used, and fewer are faster.

What it is
    The training loader has more worker processes than this process may use cores: by
    affinity, quota or batch system, which `os.cpu_count` does not tell.

Why it costs
    Workers take turns on the cores with each other and with the training, and all of them have
    to start and to end with every epoch unless they persist.

How it is measured
    Blocks with fewer workers take turns with blocks as the script is. What an epoch's start and
    end take is shared out over its iterations.

What to do
    Use `len(os.sched_getaffinity(0))` or the quota of the container, not `os.cpu_count()`.

Source
    PyTorch's own warning on the suggested maximum of workers; measured here instead of
    assumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, gained, milliseconds, place_from
from hasten.records import Setting

_GAIN = 0.03  # of an iteration


class TooManyWorkers(Finding):
    """Workers that have no core to run on."""

    name: ClassVar[str] = "too-many-workers"
    subject: ClassVar[str] = "data"
    fixed_by: ClassVar[tuple[str, ...]] = ("loader-workers",)

    def what_if(self, diagnosis: Diagnosis) -> Setting | None:
        """As many workers as leave a core to the training."""
        loader = diagnosis.profile.loader
        cores = diagnosis.environment.cores
        if loader is None or not loader.owned or loader.workers <= cores:
            return None
        fewer = max(1, cores - 1)
        return {"loader-workers": {"workers": fewer, "prefetch": 2, "persistent": False}}

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Fewer are surely faster."""
        what_if, loader = gained(diagnosis, self.name), diagnosis.profile.loader
        if what_if is None or loader is None or what_if.gain < _GAIN * what_if.before:
            return
        cores = diagnosis.environment.cores
        fewer = max(1, cores - 1)
        yield Found(
            summary=f"{loader.workers} workers share {cores} core{'s' if cores > 1 else ''}",
            todo=f"DataLoader(..., num_workers={fewer})",
            evidence=(
                f"{milliseconds(what_if.before)} an iteration, {milliseconds(what_if.after)} with "
                f"{fewer}",
            ),
            place=place_from(diagnosis.observed.facts.get("loaders", {}).get("made")),
            cost=what_if.gain,
        )
