"""Tuning inside the training that counts: its own first iterations are the blocks.

The same search as in `hasten tune`, answered by this process instead of a child. Every sample is
used once and in its order, nothing is repeated and nothing thrown away; so no data-free ceiling is
measured, no unit is tried that takes a process of its own, and what is found is not confirmed
between two processes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

from hasten.environment import look
from hasten.instrument.conductor import Conductor, Program
from hasten.instrument.programs import failure, obey
from hasten.instrument.recorder import Iteration
from hasten.optimisations import Numerics, discover
from hasten.records import Outcome, Profile, Watch
from hasten.tuning.candidates import Scope
from hasten.tuning.comparing import (
    Answer,
    Bench,
    Clock,
    Command,
    Fresh,
    Steps,
    new_family,
    nothing,
)
from hasten.tuning.listener import Listener
from hasten.tuning.search import Search

_WATCHED = 120  # iterations, unless that takes too long
_WATCH_SHARE = 0.1  # of the budget, at most


@dataclass(frozen=True)
class InsideRequest:
    """What to try, and for how long.

    Attributes:
        budget: seconds of measuring.
        classes: names of the classes of numerics that may be tried.
        only, skip: names of optimisations.
        seed: of the order of blocks.
        item_seeds: what is random in an item comes from seed, epoch and index.
    """

    budget: float = 120.0
    classes: tuple[str, ...] = (Numerics.EXACT.value,)
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    seed: int = 0
    item_seeds: bool = False


@dataclass
class Inside:
    """One tuning in this process; `outcome` may be asked for at any moment.

    Attributes:
        request: what to try.
        listener: who is told how it goes on.
        done: called once with what is known at the end, or None when nothing is.
        stay: whether the winner stays in force when the search is over.
    """

    request: InsideRequest
    listener: Listener
    done: Callable[[Outcome | None], None]
    stay: bool = True
    search: Search | None = None
    iterations: int = 0
    ended: bool = False
    _steps: Steps | None = None
    _command: Command | None = None

    def conductor(self, program: Callable[[Conductor], Program]) -> Conductor:
        """One that runs this program; its seams aren't in yet."""
        conductor = Conductor(program)
        conductor.caches.seeds.on = self.request.item_seeds
        return conductor

    def program(self, conductor: Conductor) -> Program:
        """For a conductor: watch, search, put the winner into force, leave.

        A loop that ended before the search did is taken up again by the next conductor.
        """
        yield
        try:
            yield from self._tune(conductor)
        except Exception as error:  # ours: the user's training goes on as it was
            self._give_up(conductor, error)
        self.iterations += conductor.iterations
        self.end(interrupted=False)

    def end(self, interrupted: bool) -> None:
        """Tell what is known, once: at the end of the search or of the training."""
        if not self.ended:
            self.ended = True
            self.done(self.outcome(interrupted))

    def _tune(self, conductor: Conductor) -> Generator[None, Iteration, None]:
        if self.search is None:
            yield from self._watch(conductor)
        else:
            self._send(Fresh())
        while self._command is not None:
            answer: Answer
            try:
                answer = yield from obey(conductor, self._command)
            except Exception as error:  # ours: that candidate is out, the search goes on
                answer = failure(conductor, error)
                self._undo(conductor)
            self._send(answer)
        self._settle(conductor)

    def _watch(self, conductor: Conductor) -> Generator[None, Iteration, None]:
        self.listener.watching(0, _WATCHED)
        answer = yield from obey(conductor, Watch(_WATCHED, self.request.budget * _WATCH_SHARE))
        assert isinstance(answer, Profile)
        self.listener.profiled(answer)
        self.search = self._search(answer)
        self._steps = self.search.run()
        self._command = next(self._steps, None)

    def _send(self, answer: Answer) -> None:
        assert self._steps is not None
        try:
            self._command = self._steps.send(answer)
        except StopIteration:
            self._command = None

    def _search(self, profile: Profile) -> Search:
        bench = Bench(
            profile,
            new_family(profile),
            Clock(self.request.budget),
            random.Random(self.request.seed),
            throw_away=False,
            process_of=nothing,
        )
        classes = frozenset(Numerics(name) for name in self.request.classes)
        scope = Scope(only=self.request.only, skip=self.request.skip, inside=True, classes=classes)
        return Search(bench, look(), scope, self.listener)

    def _settle(self, conductor: Conductor) -> None:
        """The winner stays for the rest of the training; seams that it doesn't need go."""
        assert conductor.seams is not None and self.search is not None
        setting = self.search.found.setting if self.stay else {}
        conductor.seams.apply(setting)
        self._leave(conductor, {discover()[name].needs for name in setting})

    def _leave(self, conductor: Conductor, needed: set[str]) -> None:
        """Items are seeded to the end of the training."""
        conductor.end_program(needed | ({"loader"} if self.request.item_seeds else set()))

    def _undo(self, conductor: Conductor) -> None:
        assert conductor.seams is not None
        conductor.seams.apply({})

    def _give_up(self, conductor: Conductor, error: Exception) -> None:
        self.listener.note(f"tuning was given up ({type(error).__name__}: {error})")
        self.search = None
        self._undo(conductor)
        self._leave(conductor, set())

    def outcome(self, interrupted: bool) -> Outcome | None:
        """What is known by now; None before the loop was watched."""
        if self.search is None:
            return None
        return replace(self.search.outcome(interrupted), iterations=self.iterations)
