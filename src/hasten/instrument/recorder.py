"""Where an iteration's time goes: exclusive time in each phase, with little to pay for it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from hasten.records import PHASES

DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(len(PHASES))

_STOOD_STILL_NS = 50_000  # between two iterations; below, one look at the clock serves both


@dataclass(slots=True)
class Iteration:
    """One finished iteration.

    Attributes:
        seconds: wall time.
        processor: processor time of this process, all its threads.
        phases: seconds in each of PHASES.
        void: why it can't be compared with others (validation, a save, an epoch border), or "".
    """

    seconds: float
    processor: float
    phases: list[float]
    void: str = ""
    backwards: int = 0
    steps: int = 0


@dataclass(slots=True)
class Recorder:
    """Accumulates the present iteration; `enter` and `leave` are on the hot path."""

    crossings: int = 0
    void: str = ""
    backwards: int = 0
    steps: int = 0
    _mark: int = 0
    _start: int = 0
    _processor: int = 0
    _spent: list[int] = field(default_factory=lambda: [0] * len(PHASES))
    _stack: list[int] = field(default_factory=lambda: [OTHER])

    def enter(self, phase: int) -> None:
        """Time goes to `phase` until the matching `leave`; an outer phase stands still."""
        now = time.perf_counter_ns()
        self._spent[self._stack[-1]] += now - self._mark
        self._mark = now
        self._stack.append(phase)
        self.crossings += 1

    def leave(self) -> None:
        """Go back to the phase outside."""
        now = time.perf_counter_ns()
        if len(self._stack) > 1:
            self._spent[self._stack.pop()] += now - self._mark
        self._mark = now

    def finish(self) -> Iteration | None:
        """The iteration that ends here, or None when none had begun."""
        if not self._start:
            return None
        now, processor = time.perf_counter_ns(), time.process_time_ns()
        self._spent[self._stack[-1]] += now - self._mark
        self._mark = now
        used, self._processor = processor - self._processor, processor
        return Iteration(
            seconds=(now - self._start) * 1e-9,
            processor=used * 1e-9,
            phases=[ns * 1e-9 for ns in self._spent],
            void=self.void,
            backwards=self.backwards,
            steps=self.steps,
        )

    def begin(self) -> None:
        """An iteration begins here; what came before is forgotten."""
        self.void = ""
        self.backwards = self.steps = 0
        self._spent = [0] * len(PHASES)
        now = time.perf_counter_ns()
        # The processor's clock is a system call, dearer than all else here.
        if now - self._mark > _STOOD_STILL_NS or not self._start:
            self._processor = time.process_time_ns()
        self._start = self._mark = now
