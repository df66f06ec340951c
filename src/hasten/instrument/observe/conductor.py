"""A conductor that tells observers what happens as well, and keeps account of the whole run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil
from torch.optim import Optimizer

from hasten.diagnosis import FINE_PHASES, Stretch
from hasten.instrument.conductor import Conductor, Program
from hasten.instrument.detection import Loop
from hasten.instrument.observe import discover
from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.log import Log
from hasten.instrument.recorder import Iteration
from hasten.instrument.seams.root import Root
from hasten.instrument.tracing import TracingRecorder
from hasten.records import PHASES

#: Index of the copy phase in the recorder of a diagnosis.
COPY = len(PHASES)
#: Index of what observers themselves take, which is taken out of every figure.
OWN = COPY + 1


class FineRecorder(TracingRecorder):
    """A recorder with a phase for copies, processor time by phase, and without our own time.

    Attributes:
        used: processor seconds of this process (all threads) in each phase of the iteration that
            ended last, in the recorder's order.
    """

    def __init__(self) -> None:
        super().__init__()
        self._spent += [0, 0]
        self.used: list[float] = []
        self._busy = [0] * (OWN + 1)
        self._clock = time.process_time_ns()

    def _charge(self) -> None:
        now = time.process_time_ns()
        self._busy[self._stack[-1]] += now - self._clock
        self._clock = now

    def enter(self, phase: int) -> None:
        """Time goes to `phase` until the matching `leave`."""
        self._charge()
        super().enter(phase)

    def leave(self) -> None:
        """Go back to the phase outside."""
        self._charge()
        super().leave()

    def finish(self) -> Iteration | None:
        """The iteration that ends here, or None when none had begun."""
        self._charge()
        self.used = [ns * 1e-9 for ns in self._busy]
        iteration = super().finish()
        if iteration is not None:
            iteration.seconds -= iteration.phases[OWN]
            iteration.processor = max(0.0, iteration.processor - self.used[OWN])
        return iteration

    @property
    def own(self) -> float:
        """Seconds that observers have taken in this iteration."""
        return self._spent[OWN] * 1e-9

    def begin(self) -> None:
        """An iteration begins here."""
        super().begin()
        self._spent += [0, 0]
        self._busy = [0] * (OWN + 1)
        self._clock = time.process_time_ns()


def fine(seconds: Sequence[float]) -> dict[str, float]:
    """Seconds of an iteration's phases, as the recorder has them, by the names of FINE_PHASES."""
    named = dict(zip((*PHASES, "copy"), seconds[: COPY + 1], strict=True))
    return {name: named[name] for name in FINE_PHASES}


class ObservingConductor(Conductor):
    """Owns the seams of one process, and the observers.

    Attributes:
        log: what they write to.
        observers: all that were found.
        startup_seconds: from the start of the process until the loop was recognised.
        stretches: seconds and count of what is no plain iteration, by what it is.
        plain: count and seconds of plain iterations.
        trained: iterations with a backward pass, plain or not.
        memory_first: resident bytes when the loop was recognised.
        began: when the script did, in seconds since 1970; 0: with its process.
    """

    def __init__(self, program: Callable[[Conductor], Program]) -> None:
        super().__init__(program)
        self.recorder: FineRecorder = FineRecorder()
        self.log = Log()
        self.observers: list[Observer] = discover()
        self.startup_seconds = 0.0
        self.stretches: dict[str, list[float]] = {}
        self.plain = [0, 0.0]
        self.trained = 0
        self.memory_first = 0
        self.began = 0.0
        self.watching = True
        self._validating: list[float] = []
        self._saving = 0.0

    def install(self) -> None:
        """Observers last: their hooks lie over the seams, and come off before them."""
        super().install()
        for observer in self.observers:
            attach = getattr(observer, "attach", None)
            if attach is not None:
                attach(self.recorder)
            observer.start(self.log)

    def stop_observing(self) -> None:
        """Take every hook of the observers out; the seams stay."""
        self.watching = False
        self.log.restore()
        self.observers = []

    def account(self) -> tuple[Stretch, ...]:
        """The parts of the run that are no plain iterations."""
        return tuple(
            Stretch(what, int(count), seconds)
            for what, (count, seconds) in sorted(self.stretches.items(), key=lambda i: -i[1][1])
        )

    # --- events -----------------------------------------------------------------------------

    def _found(self, loop: Loop) -> None:
        super()._found(loop)
        process = psutil.Process(os.getpid())
        began = self.began or process.create_time()
        self.startup_seconds = max(0.0, time.time() - began)
        self.memory_first = process.memory_info().rss

    def _border(self) -> None:
        if self.watching and self.recorder._start:
            seconds = (time.perf_counter_ns() - self.recorder._start) * 1e-9 - self.recorder.own
            self.recorder.enter(OWN)
            self._ended(seconds)
            self.recorder.leave()
        super()._border()

    def tell_ended(self, iteration: Iteration) -> None:
        """Observers may look at an iteration that has ended, while the script stands still."""
        self._tell("iteration_ended", iteration)

    def _ended(self, seconds: float) -> None:
        """Book an iteration that is about to end."""
        void = self.recorder.void
        self.log.iteration_ended(not void)
        self.trained += self.recorder.backwards > 0
        validation = self._validating[-1] - self._validating[0] if self._validating else 0.0
        parts = [("validation", validation), ("saving", self._saving)]
        parts += [(observer.name, observer.taken()) for observer in self.observers]
        for what, part in parts:
            if part:
                self._book(what, part)
                seconds -= part
        self._validating, self._saving = [], 0.0
        if void:
            self._book(void, max(0.0, seconds))
        else:
            self.plain = [self.plain[0] + 1, self.plain[1] + max(0.0, seconds)]

    def _book(self, what: str, seconds: float) -> None:
        entry = self.stretches.setdefault(what, [0, 0.0])
        entry[0] += 1
        entry[1] += seconds

    def _tell(self, what: str, *args: Any) -> None:
        counts = not self._suspended and bool(self.observers) and not self._foreign()
        if counts:
            self.recorder.enter(OWN)
        try:
            for observer in self.observers:
                getattr(observer, what)(self.log, *args)
        finally:
            if counts:
                self.recorder.leave()

    def fetching(self, loader: Any) -> None:
        """A batch is about to be fetched; another loader's is validation, and ends with it."""
        super().fetching(loader)
        self._other(loader)
        self._tell("fetching", loader, self._is_training(loader))

    def _other(self, loader: Any) -> None:
        """Remember when validation began and when it was last seen to go on."""
        loop = self._loop
        if loop is None or loop.loader is None or id(loader) in loop.companions:
            return
        if not self._foreign() and not self._is_training(loader):
            self._validating = [*self._validating[:1], time.perf_counter()]

    def _save(self, save: Callable[..., Any]) -> Callable[..., Any]:
        """Here a save is part of the iteration: how often and how long is what is looked for."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            try:
                return save(*args, **kwargs)
            finally:
                self._saving += time.perf_counter() - begun

        return wrapped

    def epoch_started(self, loader: Any) -> None:
        """The script asked for an iterator."""
        super().epoch_started(loader)
        self._tell("epoch_started", loader, self._is_training(loader))

    def epoch_ended(self, loader: Any) -> None:
        """The script has read the last batch."""
        super().epoch_ended(loader)
        self._other(loader)
        self._tell("epoch_ended", loader, self._is_training(loader))

    def fetched(self, loader: Any, batch: Any) -> None:
        """A batch has come."""
        super().fetched(loader, batch)
        self._tell("fetched", loader, batch, self._is_training(loader))

    def root_entered(self, root: Root, training: bool) -> None:
        """A root is called."""
        super().root_entered(root, training)
        self._tell("root_entered", root.module, training)

    def root_left(self, root: Root, training: bool) -> None:
        """Its call has ended."""
        self._tell("root_left", root.module, training)
        super().root_left(root, training)

    def _backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        inner = super()._backward(backward)

        def wrapped(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            self._tell("before_backward", tensors)
            try:
                return inner(tensors, *args, **kwargs)
            finally:
                self._tell("after_backward", tensors)

        return wrapped

    def _before_step(self, optimizer: Optimizer) -> None:
        super()._before_step(optimizer)
        self._tell("before_step", optimizer)

    def _after_step(self, optimizer: Optimizer) -> None:
        self._tell("after_step", optimizer)
        super()._after_step(optimizer)
