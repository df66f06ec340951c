"""What the benchmarks of tuning share: one bench over children of a script, and kept results.

The turns themselves are hasten's own (`Driver`, `Bench`, `Race`): a setting alternates with its
reference block by block, in one child or, where a whole process is compared, between siblings.
"""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hasten.instrument.shield.launch import ShieldMode
from hasten.records import Profile, Setting
from hasten.statistics import Comparison, Family, Interval
from hasten.tuning.comparing import Bench, Clock, Race, new_family, start_part
from hasten.tuning.confirming import whole
from hasten.tuning.driver import Driver

WORKLOADS = Path(__file__).parent / "workloads"
NAMES = ("jpeg", "cnn", "vit", "gpt", "lstm", "vae")
ALPHA = 0.05  # of a quoted interval
_TIMEOUT = 300.0  # seconds until the first iteration


class Nobody:
    """A listener that says nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: None


def script(name: str) -> Path:
    """The file of a workload.

    Raises:
        SystemExit: there is none of this name.
    """
    path = WORKLOADS / f"{name}.py"
    if not path.exists():
        raise SystemExit(f"no workload {name!r}; there are: {', '.join(NAMES)}")
    return path


class Log:
    """Results as JSON lines: what was measured once is read again, and measuring goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        self.rows: list[dict[str, Any]] = []
        for place, line in enumerate(lines):
            try:
                self.rows.append(json.loads(line))
            except ValueError:
                if place < len(lines) - 1:  # only the last one can have been cut off
                    raise
                path.write_text("".join(f"{whole_line}\n" for whole_line in lines[:-1]), "utf-8")

    def add(self, kind: str, **row: Any) -> dict[str, Any]:
        """Keep one result, with the load average of now."""
        made = {"kind": kind, **row, "load": round(os.getloadavg()[0], 2)}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(made) + "\n")
        self.rows.append(made)
        return made

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Every result of a kind, in the order in which they came."""
        return [row for row in self.rows if row["kind"] == kind]

    def last(self, kind: str) -> dict[str, Any] | None:
        """The newest result of a kind."""
        found = self.of(kind)
        return found[-1] if found else None


class Table:
    """Measures settings of one script."""

    def __init__(self, argv: tuple[str, ...], seed: int = 0) -> None:
        self.argv = argv
        self._rng = random.Random(seed)
        self.clock = Clock(math.inf)
        self.driver = self._driver()
        self.profile: Profile | None = None
        self._bench: Bench | None = None

    def _driver(self) -> Driver:
        mode, say = ShieldMode.NONE, Nobody().note
        driver = Driver(self.argv, mode, Nobody(), say, _TIMEOUT, repeat=True)
        driver.clock = self.clock
        return driver

    def watch(self, iterations: int = 60, seconds: float = 12.0) -> Profile:
        """Start the script and watch it as it is."""
        self.profile = self.driver.watch(iterations, seconds)
        return self.profile

    @property
    def noise(self) -> float | None:
        """What blocks of the script as it is differed by while it was watched."""
        assert self.profile is not None, "watch first"
        return new_family(self.profile).noise

    def bench(self, siblings: bool = False) -> Bench:
        """What races share; with `siblings` every setting has a process of its own."""
        assert self.profile is not None, "watch first"
        process_of = whole if siblings else start_part
        self.driver.process_of = process_of
        if self._bench is None or self._bench.process_of is not process_of:
            family = Family(alpha=ALPHA, noise=self.noise, patience=10**9)
            self._bench = Bench(self.profile, family, self.clock, self._rng, process_of=process_of)
        return self._bench

    def pair(self, race: Race) -> tuple[float, float] | None:
        """One more pair of blocks: mean seconds of an iteration under reference and candidate.

        None where the script began anew in between; then nothing was measured.
        """
        before = race.result.pairs
        self.driver.serve(race.turns(1, math.inf, decided=False))
        if race.result.problem or race.result.pairs == before:
            return None
        return race.result.reference_iteration, race.result.candidate_iteration

    def close(self) -> None:
        """End every child."""
        self.driver.close()


@contextmanager
def table(argv: tuple[str, ...], seed: int = 0) -> Iterator[Table]:
    """A watched `Table`, whose children end with the block."""
    made = Table(argv, seed)
    try:
        made.watch()
        yield made
    finally:
        made.close()


@dataclass
class Point:
    """A setting and all pairs that were ever measured of it against one reference."""

    setting: Setting
    noise: float | None = None
    pairs: list[tuple[float, float]] = field(default_factory=list)
    problem: str = ""
    race: Race | None = None
    _known: tuple[int, float | None, Interval] | None = None  # at so many pairs and this noise

    @property
    def key(self) -> str:
        """The setting as one string."""
        return key(self.setting)

    def interval(self) -> Interval:
        """Reference time over this one's, with its interval, by hasten's statistics."""
        if self._known is not None and self._known[:2] == (len(self.pairs), self.noise):
            return self._known[2]
        comparison = Comparison(ALPHA, noise=self.noise, patience=10**9)
        for reference, candidate in self.pairs:
            comparison.add(reference, candidate)
        interval = comparison.interval()
        self._known = (len(self.pairs), self.noise, interval)
        return interval


def key(setting: Setting) -> str:
    """A setting as one string that is the same for the same values."""
    return json.dumps(setting, sort_keys=True)


class Stopwatch:
    """Whether the seconds that this call may take are over."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def over(self) -> bool:
        return time.monotonic() > self._end
