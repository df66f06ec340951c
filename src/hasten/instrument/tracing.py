"""Keeps when phases began and ended in single iterations, for a timeline of typical ones."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from hasten.diagnosis import Span, Timeline
from hasten.instrument.recorder import Iteration, Recorder
from hasten.records import PHASES

if TYPE_CHECKING:
    from hasten.instrument.conductor import Conductor

_KEPT = 64  # iterations
_MARKS = 600  # changes of phase in one iteration that are kept
_SHOWN = 4  # iterations in a timeline
_TINY = 2e-4  # of a timeline: what is shorter can't be seen


@dataclass(frozen=True)
class Trace:
    """One iteration: its ends and the moments at which its phase changed, in nanoseconds."""

    begin: int
    end: int
    marks: tuple[tuple[int, int], ...]  # when, the phase from then on
    void: bool


class TracingRecorder(Recorder):
    """A recorder that remembers the last iterations phase by phase.

    Attributes:
        traces: of the last iterations.
        others: spans of other lanes: lane, what, begin and end in nanoseconds of perf_counter.
        missing: lanes that could not be seen, and why.
    """

    def __init__(self) -> None:
        super().__init__()
        self.traces: deque[Trace] = deque(maxlen=_KEPT)
        self.others: list[tuple[str, str, int, int]] = []
        self.missing: dict[str, str] = {}
        self._marks: list[tuple[int, int]] = []

    def enter(self, phase: int) -> None:
        """Time goes to `phase` until the matching `leave`."""
        super().enter(phase)
        if len(self._marks) < _MARKS:
            self._marks.append((self._mark, phase))

    def leave(self) -> None:
        """Go back to the phase outside."""
        super().leave()
        if len(self._marks) < _MARKS:
            self._marks.append((self._mark, self._stack[-1]))

    def finish(self) -> Iteration | None:
        """The iteration that ends here, or None when none had begun."""
        iteration = super().finish()
        if iteration is not None:
            marks, void = tuple(self._marks), bool(iteration.void)
            self.traces.append(Trace(self._start, self._mark, marks, void))
        return iteration

    def begin(self) -> None:
        """An iteration begins here."""
        super().begin()
        self._marks = [(self._start, self._stack[-1])]

    def timeline(self, names: tuple[str, ...] = PHASES) -> Timeline | None:
        """Typical iterations out of those that were kept; None when there are none.

        Args:
            names: of the phases by their index; a phase without a name is "other".
        """
        chosen = typical(list(self.traces))
        return self._timeline(chosen, names) if chosen else None

    def last(self, names: tuple[str, ...] = PHASES) -> Timeline | None:
        """The last iteration, whatever it was like."""
        return self._timeline([self.traces[-1]], names) if self.traces else None

    def _timeline(self, chosen: list[Trace], names: tuple[str, ...]) -> Timeline:
        start, end = chosen[0].begin, chosen[-1].end
        named = {index: name for index, name in enumerate(names)}
        spans = [
            ("main", named.get(phase, "other"), a, b)
            for trace in chosen
            for phase, a, b in _phases(trace)
        ]
        spans += sorted(s for s in self.others if s[3] > start and s[2] < end)
        least = _TINY * (end - start)
        return Timeline(
            borders=tuple((at - start) * 1e-9 for at in (*(t.begin for t in chosen), end)),
            spans=tuple(
                Span(lane, what, max(0, a - start) * 1e-9, (min(b, end) - start) * 1e-9)
                for lane, what, a, b in spans
                if b - a >= least
            ),
            missing=dict(self.missing),
        )


def _phases(trace: Trace) -> list[tuple[int, int, int]]:
    """Phase, begin and end of each stretch of an iteration."""
    ends = [*(when for when, _ in trace.marks[1:]), trace.end]
    return [(p, a, b) for (a, p), b in zip(trace.marks, ends, strict=True) if b > a]


def typical(traces: list[Trace]) -> list[Trace]:
    """The consecutive plain iterations that are most like all plain ones, in mean and median.

    Between two of them there may be no void one, and the script may not have stood still.
    """
    plain = [t.end - t.begin for t in traces if not t.void]
    if not plain:
        return []
    mean, median = statistics.fmean(plain), statistics.median(plain)

    def unlike(window: list[Trace]) -> float:
        times = [t.end - t.begin for t in window]
        return abs(statistics.fmean(times) - mean) + abs(statistics.median(times) - median)

    for length in range(min(_SHOWN, len(plain)), 0, -1):
        windows = [traces[i : i + length] for i in range(len(traces) - length + 1)]
        whole = [w for w in windows if not any(t.void for t in w) and _follow(w, mean)]
        if whole:
            return min(whole, key=unlike)
    return []


def _follow(window: list[Trace], mean: float) -> bool:
    gaps = [b.begin - a.end for a, b in pairwise(window)]
    return all(gap <= 0.05 * mean + 200_000 for gap in gaps)


def start(conductor: Conductor) -> TracingRecorder:
    """Trace from now on; at a border between two iterations only."""
    if isinstance(conductor.recorder, TracingRecorder):
        return conductor.recorder
    tracer = TracingRecorder()
    tracer._stack = conductor.recorder._stack  # shared: a phase may be open round the loop
    tracer.crossings = conductor.recorder.crossings
    conductor.recorder = tracer
    return tracer


def stop(conductor: Conductor, before: Recorder) -> None:
    """Go back to the recorder that was there; at a border between two iterations only."""
    before.crossings = conductor.recorder.crossings
    conductor.recorder = before
