"""What `hasten batch` is asked, and what it finds out, as the parent holds it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path

from hasten.batching import MemoryUsed
from hasten.records import Profile
from hasten.tuning.fitting import Saving
from hasten.tuning.memory_model import MemoryModel
from hasten.tuning.noise_scale import NoiseScale


@dataclass(frozen=True)
class BatchRequest:
    """What to measure.

    Attributes:
        argv: the script and its arguments as Python takes them.
        script: its file; None where that isn't known.
        budget: seconds of measuring, about.
        sizes: batch sizes to measure; none: chosen.
        limit: bytes that the training may take; None: what there is.
        shield, timeout: as in `TuneRequest`.
    """

    argv: tuple[str, ...]
    script: Path | None = None
    budget: float = 120.0
    sizes: tuple[int, ...] = ()
    limit: int | None = None
    shield: str = "auto"
    timeout: float = 600.0


@dataclass(frozen=True)
class Point:
    """One batch size.

    Attributes:
        used: what it took; None: `failed` says why there are no figures.
        turns: how many times the script's own samples a second, in each of a few turns.
        own: samples a second of the script as it is.
    """

    size: int
    used: MemoryUsed | None = None
    failed: str = ""
    turns: tuple[float, ...] = ()
    own: float = 0.0

    @property
    def samples_per_second(self) -> float:
        """Throughput, by turns with the script's own where there were any; 0: none is known."""
        if self.turns:
            return self.own * statistics.median(self.turns)
        return self.size / self.used.seconds if self.used and self.used.seconds > 0 else 0.0


@dataclass
class Measured:
    """All that was found out.

    Attributes:
        own: the script's batch size.
        window: iterations that one optimizer step takes.
        limit: bytes that there are, or that were allowed.
        stopped: why no larger size was measured.
        largest: that is predicted to fit; None: any does.
        savings: ways to fit the script's own size into the limit, where it does not.
        confirmed: the size at which the prediction was tried once.
    """

    profile: Profile
    own: int
    window: int
    limit: int
    points: list[Point] = field(default_factory=list)
    model: MemoryModel | None = None
    noise: NoiseScale | None = None
    no_noise: str = ""
    option: str | None = None
    largest: int | None = None
    confirmed: Point | None = None
    predicted: float = 0.0  # bytes of tensors at the confirmed size
    stopped: str = ""
    savings: list[Saving] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    shield: str = ""

    def good(self) -> list[Point]:
        """The sizes that have figures, in order."""
        return sorted((p for p in self.points if p.used is not None), key=lambda p: p.size)
