"""What a child sees of a script while it is diagnosed: plain data that findings are made from.

Everything here travels over the protocol. Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: Phases of an iteration in a diagnosis: those of tuning, and copies between devices apart.
FINE_PHASES = ("data", "copy", "forward", "backward", "optimizer", "other")


@dataclass(frozen=True)
class Place:
    """A line of the user's own source.

    Attributes:
        file: absolute path.
        line: from 1.
        code: its text without the space around it.
        function: the function that it is in.
    """

    file: str
    line: int
    code: str = ""
    function: str = ""


@dataclass(frozen=True)
class Event:
    """What the script did at one place of its source, all occurrences together.

    Attributes:
        kind: "backward", "step", "zero_grad", "item", "save", ...: see the observers.
        place: the user's innermost line on the stack; None: none of it is the user's.
        count: occurrences since the start of the process.
        observed: occurrences in the observed iterations only.
        seconds: in the observed iterations, inside the call, all together.
        total_seconds: inside the call, since the start of the process.
        facts: what the observer adds; of several values the last one.
    """

    kind: str
    place: Place | None
    count: int
    observed: int = 0
    seconds: float = 0.0
    total_seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Moment:
    """One event in its order: `event` is an index into `Observed.events`."""

    event: int
    kind: str
    subject: str = ""  # whom it was about: "optimizer 0", "root 1"; empty: nobody in particular


@dataclass(frozen=True)
class Spread:
    """How a time is spread over iterations.

    Attributes:
        median, mean, low, high: of the values; low and high are the 5th and 95th percentile.
        bursts: share of the total that lies in values above three times the median.
    """

    median: float
    mean: float
    low: float
    high: float
    bursts: float = 0.0


@dataclass(frozen=True)
class Span:
    """Something that takes time on one lane of a timeline.

    Attributes:
        lane: "main", "worker 0", "worker 1", ..., "device".
        what: a phase of FINE_PHASES, "batch" (a worker makes one) or "busy" (of a device).
        begin, end: seconds since the timeline's beginning.
    """

    lane: str
    what: str
    begin: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """Some consecutive iterations as they went, typical ones.

    Attributes:
        borders: seconds at which iterations begin; the last is the end of the last one.
        spans: by lane, in order.
        missing: lanes that could not be seen, and why.
    """

    borders: tuple[float, ...]
    spans: tuple[Span, ...]
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Course:
    """How one of the two processes of a confirmation went.

    Attributes:
        setting: values of optimisations by name; empty: the script as it is.
        losses: the number of an iteration since the start, and the mean loss until there.
        peak_memory: resident bytes at most.
    """

    setting: dict[str, Any]
    losses: tuple[tuple[int, float], ...] = ()
    peak_memory: int = 0


@dataclass(frozen=True)
class Stretch:
    """Time of the run that is not a plain iteration: validation, a save, an epoch border."""

    what: str
    count: int
    seconds: float


@dataclass(frozen=True)
class Observed:
    """The answer to `Observe`: what happened, where, and how long it took.

    Attributes:
        iterations: plain ones that were observed.
        wall: of an iteration.
        processor: processor seconds an iteration of the process, all threads (not workers).
        phases: of an iteration, keys FINE_PHASES.
        events: what the script did, by kind and place.
        sequences: the order of events in single iterations, the last ones (at most 16).
        opening: likewise the first iterations since the loop was recognised.
        startup_seconds: from the start of the process until the loop was recognised.
        stretches: time since then that is no plain iteration, by what it is.
        plain_seconds: time since then in plain iterations, `plain_iterations` of them, without
            validation and saves.
        trained_iterations: iterations with a backward pass since then, plain or not.
        facts: what observers found out, by the observer's name.
        timeline: typical iterations, phase by phase.
        processor_phases: like `phases`, in processor seconds of the process: what other programs
            take away is not in them, nor is waiting.
        series: seconds in the order of iterations, by phase, and as "iteration" and "processor";
            of many iterations the means of so many neighbours that few are left.
    """

    iterations: int
    wall: Spread
    processor: Spread
    phases: dict[str, Spread]
    events: tuple[Event, ...]
    sequences: tuple[tuple[Moment, ...], ...]
    opening: tuple[tuple[Moment, ...], ...]
    startup_seconds: float
    stretches: tuple[Stretch, ...]
    plain_seconds: float
    plain_iterations: int
    trained_iterations: int
    facts: dict[str, Any] = field(default_factory=dict)
    timeline: Timeline | None = None
    processor_phases: dict[str, Spread] = field(default_factory=dict)
    series: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def all(self, kind: str) -> list[Event]:
        """The events of a kind, the most frequent first."""
        return sorted((e for e in self.events if e.kind == kind), key=lambda e: -e.count)

    def per_iteration(self, event: Event) -> float:
        """How often an event happens in an iteration."""
        return event.observed / max(1, self.iterations)


@dataclass(frozen=True)
class TransformTime:
    """One class of transforms in the data set, timed without workers."""

    name: str
    seconds: float  # a batch, exclusive of transforms inside
    place: Place | None = None  # where the class is written, when that is the user's file


@dataclass(frozen=True)
class LoaderTimes:
    """The training loader by itself.

    Attributes:
        fetch: seconds to make a batch in one process: items and collating.
        collate: the part of it that is collating.
        batch_bytes: of the tensors in a batch.
        alone: seconds a batch as the script configured it, when nobody waits between batches;
            None: not measured.
        transforms: by class, the slowest first.
        item_place, collate_place: where the user's own code of these is.
        unknown: why something could not be measured.
    """

    fetch: float | None = None
    collate: float | None = None
    batch_bytes: int = 0
    alone: float | None = None
    transforms: tuple[TransformTime, ...] = ()
    item_place: Place | None = None
    collate_place: Place | None = None
    unknown: str = ""


@dataclass(frozen=True)
class Examined:
    """The answer to `Examine`: the machine under this script, and the loader by itself.

    Attributes:
        loader: None without a training loader.
        flops: floating point operations of an iteration by torch's counter; 0: not countable.
        peaks: measured matmul speed in operations a second by dtype ("float32", ...).
        memory_first, memory_last: resident bytes of the process when the loop was recognised,
            and now.
        peak_memory: the largest resident size.
        device_peak_memory: bytes allocated on the accelerator at most; None: there is none.
        single_precision: seconds of forward and backward in (the script's precision, float32),
            on a copy of the model; None: the script computes in float32 already.
        facts: what observers add.
        timeline: one iteration under torch's profiler, with the lane of the device; None where
            there is none.
    """

    loader: LoaderTimes | None = None
    flops: int = 0
    peaks: dict[str, float] = field(default_factory=dict)
    memory_first: int = 0
    memory_last: int = 0
    peak_memory: int = 0
    device_peak_memory: int | None = None
    single_precision: tuple[float, ...] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    timeline: Timeline | None = None


@dataclass(frozen=True)
class WhatIf:
    """An iteration as it is against one with something changed, in blocks that take turns.

    Attributes:
        before, after: median seconds of an iteration.
        sure: the change is faster beyond chance.
    """

    before: float
    after: float
    pairs: int = 0
    sure: bool = True
    problem: str = ""

    @property
    def gain(self) -> float:
        """Seconds an iteration that the change saves; negative: it costs."""
        return self.before - self.after


@dataclass(frozen=True)
class Ceilings:
    """Measured what-ifs of the whole loop; None: not measured or there is nothing to free."""

    data_free: WhatIf | None = None
    copies_free: WhatIf | None = None
