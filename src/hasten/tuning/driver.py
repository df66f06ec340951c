"""Answers a search's commands by child processes, and replaces children that end or fail.

One child runs all settings that can change between two iterations. A setting with a `start` unit
has a sibling of its own; a sibling stands still at an iteration border while another has its turn.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

import psutil

from hasten.errors import HastenError, brief
from hasten.instrument.shield.launch import ShieldMode
from hasten.optimisations import compiles
from hasten.records import BlockDone, Failed, Profile, Prove, RunBlock, Setting, Watch
from hasten.tuning.comparing import Answer, Clock, Command, Fresh, start_part
from hasten.tuning.listener import Listener
from hasten.tuning.process import Child, Gone
from hasten.verification import Follow

ENOUGH = 40  # iterations in one run of the script, without --repeat
_IN_VAIN = 5  # runs without an answer, after which a block is longer than the script
_LEAST = 8  # ... with it: less than one block
_SYNC = Watch(iterations=1, seconds=0.0)
_COMPILE_SECONDS = 1800.0  # a compilation that takes longer counts as hanging
_PATIENCE = 20  # times the usual: a block that takes longer counts as hanging
_STALLED = 60.0  # seconds that are granted in any case
_TOGETHER = 2  # siblings alive at a time, where memory holds them
_MEMORY_SHARE = 0.8  # of what is free may be taken by siblings


@dataclass
class _Running:
    """A child, what it was started for, and how far it has come."""

    child: Child
    start: Setting
    iterations: int = 0


class Driver:
    """Runs children of one script."""

    def __init__(
        self,
        argv: tuple[str, ...],
        mode: ShieldMode,
        listener: Listener,
        note: Callable[[str], None],
        timeout: float,
        repeat: bool,
    ) -> None:
        self.argv, self.mode, self.listener, self._note = argv, mode, listener, note
        self.timeout, self.repeat = timeout, repeat
        self.iterations = 0
        self.peak_memory = 0  # bytes, the largest of a child
        self.start_seconds = 0.0  # of the last child, to its first iteration
        self.shield = ""
        self.clock: Clock | None = None
        self.item_seeds = False  # of every child
        self.counts = False  # whether new children start from the same seeds, and count
        self.process_of: Callable[[Setting], Setting] = start_part
        self._starting = 0.0  # seconds that new starts took
        self._running: list[_Running] = []  # the one that had its turn last at the end
        self._usual = timeout
        self._finite = True
        self._enough = _LEAST if repeat else ENOUGH
        self._in_vain = 0  # runs of the script in a row in which no block came to its end

    # --- watching --------------------------------------------------------------------------

    def watch(self, iterations: int, seconds: float) -> Profile:
        """Start the script and watch it as it is.

        Raises:
            HastenError: it fails, ends or never trains.
        """
        self.listener.watching(0, iterations)
        begun = time.monotonic()
        try:
            child = self._start({}).child
            answer = child.ask(_SYNC, self.timeout)
            self.start_seconds = time.monotonic() - begun
            self.listener.watching(1, iterations)
            answer = child.ask(Watch(iterations, seconds), self.timeout + seconds)
        except Gone as gone:
            self.close()
            passed = gone.ended.iterations if gone.ended and gone.kind == "ended" else 0
            if self._enough <= passed and iterations > passed // 2:
                return self.watch(passed // 2, seconds)  # a short script: once more, for less
            raise before_training(gone, self.timeout, self.repeat) from None
        if not isinstance(answer, Profile):
            raise unwatched(answer)
        self._usual = max(answer.iteration_seconds)
        self._finite = answer.loss is None or math.isfinite(answer.loss)
        self._running[-1].iterations = len(answer.iteration_seconds)
        return answer

    def _start(self, start: Setting) -> _Running:
        child = Child(
            self.argv,
            self.mode,
            self._note,
            start_setting=start,
            pair=0 if self.counts else None,
            counters_only=self.counts,
            item_seeds=self.item_seeds,
        )
        running = _Running(child, start)
        self._running.append(running)
        running.child.start()
        self.shield = running.child.describe
        return running

    # --- commands --------------------------------------------------------------------------

    def serve(self, steps: Generator[Command, Answer, None]) -> None:
        """Answer a search until it is done."""
        try:
            command = next(steps)
            while True:
                command = steps.send(self.ask(command))
        except StopIteration:
            return

    def ask(self, command: Command) -> Answer:
        """One answer; a child that is gone is replaced, for whatever reason it went."""
        # What a proof changes is switched in one process, whatever it would be measured in.
        setting = command.reference if isinstance(command, Prove) else command.setting
        running = self._turn(self.process_of(setting))
        begun = time.monotonic()
        try:
            answer = running.child.ask(command, self._limit(command))
        except Gone as gone:
            if self.clock is not None:  # waiting for one that hangs is not measuring
                self.clock.exclude(time.monotonic() - begun)
            return self._gone(running, gone, command)
        self._in_vain = 0
        if isinstance(answer, BlockDone):
            running.iterations = answer.total_iterations
            self.peak_memory = max(self.peak_memory, answer.peak_memory)
        if isinstance(answer, Failed) or self._spoiled(answer):
            # Weights that became NaN, or seams in an unknown state, would spoil what follows.
            self._retire(running)
        return answer

    def _turn(self, start: Setting) -> _Running:
        """The child that was started so; a new one at its training loop if there is none."""
        for running in self._running:
            if running.start == start:
                self._running.remove(running)
                self._running.append(running)
                return running
        while len(self._running) >= (_TOGETHER if self.together else 1):
            self._retire(self._running[0])
        return self._again(start)

    @property
    def together(self) -> bool:
        """Whether memory holds two siblings."""
        free = psutil.virtual_memory().available
        return self.peak_memory * (_TOGETHER - len(self._running)) < _MEMORY_SHARE * free

    def _spoiled(self, answer: Answer) -> bool:
        """Whether a setting has made the loss NaN that is finite without it."""
        bad = isinstance(answer, BlockDone) and not answer.losses_finite and bool(answer.setting)
        return bad and self._finite

    def _limit(self, command: Command) -> float:
        count = 8
        if isinstance(command, RunBlock):
            count = command.iterations + command.warmup
        elif isinstance(command, Follow):
            count = command.iterations or count
        limit = min(_STALLED, self.timeout) + count * self._usual * _PATIENCE
        return limit + (_COMPILE_SECONDS if compiles(command.setting) else 0.0)

    def _gone(self, running: _Running, gone: Gone, command: Command) -> Answer:
        if gone.kind == "ended":
            if gone.ended is not None:
                running.iterations = max(running.iterations, gone.ended.iterations)
            if running.iterations < self._enough:
                raise HastenError(too_few(running.iterations, self.repeat))
            self._in_vain += 1
            if self._in_vain > _IN_VAIN:
                raise HastenError(too_few(running.iterations, repeated=True))
            self._retire(running)
            self._again(running.start)
            return Fresh()
        self._retire(running)
        if not command.setting:
            raise HastenError(
                f"the script failed while it ran as it is: {gone.message}", detail=gone.tail
            )
        return Failed(gone.kind, gone.message, gone.tail, command.setting, running.iterations)

    def _again(self, start: Setting) -> _Running:
        """A new child, at its training loop; starting it isn't measuring, within bounds."""
        begun = time.monotonic()
        try:
            running = self._start(start)
            running.child.ask(_SYNC, self.timeout)
        except Gone as gone:
            self._retire(self._running[-1])
            raise before_training(gone, self.timeout, self.repeat) from None
        finally:
            self.start_seconds = time.monotonic() - begun
            self._exclude_start(self.start_seconds)
        return running

    def _exclude_start(self, seconds: float) -> None:
        """A script that ends again and again must not be started for ever: starts are bounded."""
        if self.clock is not None:
            self.clock.exclude(max(0.0, min(seconds, self.clock.budget - self._starting)))
            self._starting += seconds

    def _retire(self, running: _Running) -> None:
        self.iterations += running.iterations
        self._running.remove(running)
        running.child.close()

    def close(self) -> None:
        """End every child that runs."""
        for running in list(self._running):
            self._retire(running)


def before_training(gone: Gone, timeout: float, repeat: bool = False) -> HastenError:
    """The one line for a script that did not get as far as enough iterations."""
    ended = gone.ended
    if ended is not None and ended.iterations > 0 and gone.kind == "ended":
        return HastenError(too_few(ended.iterations, repeat))
    if gone.kind == "hang":
        return HastenError(
            f"no training iteration within {timeout:.0f} s; allow more with --timeout SECONDS",
            detail=gone.tail,
        )
    if gone.kind != "ended":
        when = "in its first iterations" if ended and ended.backwards else "before it trained"
        return HastenError(f"the script failed {when}: {gone.message}", detail=gone.tail)
    if ended is not None and ended.backwards:
        return HastenError(too_few(max(1, ended.steps), repeat), detail=gone.tail)
    why = (
        "it never imported torch"
        if ended and not ended.torch_imported
        else ("no backward pass was seen in it")
    )
    return HastenError(f"the script ended without training: {why}", detail=gone.tail)


def unwatched(answer: Answer) -> HastenError:
    """The one line for a trial that can't go on for a reason of hasten's own."""
    if isinstance(answer, Failed):
        return HastenError(
            f"the script could not be watched: {brief(answer.message)}", 3, answer.traceback
        )
    return HastenError(f"the script could not be watched: {answer}", 3)


def too_few(count: int, repeated: bool) -> str:
    """The line for a script that is over too soon."""
    if repeated:
        return (
            f"the script ends after {count} iterations, too few for one comparison even when "
            "repeated: give it more data or epochs"
        )
    return (
        f"the script ended after {count} iterations; at least {ENOUGH} are needed: give it more "
        "epochs, or restart it as often as needed with --repeat"
    )
