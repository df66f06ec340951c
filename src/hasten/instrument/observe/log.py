"""What observers write to: events by kind and place, and their order in an iteration."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from hasten.diagnosis import Event, Moment
from hasten.instrument import patching
from hasten.instrument.observe.places import place, users_frame

_MOMENTS = 400  # of one iteration that are kept
_SEQUENCES = 16  # iterations whose order is kept, at the beginning and at the end
_PLACES = 500  # events of different kind or place; a loop over generated code can't fill memory
_Key = tuple[str, tuple[str, int, str] | None]


@dataclass
class _Tally:
    index: int
    count: int = 0
    observed: int = 0
    seconds: float = 0.0
    total: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)


class Log:
    """Events of one process; forked workers write nothing.

    Attributes:
        observing: the present iteration counts, when it turns out to be a plain one.
    """

    def __init__(self) -> None:
        self.observing = False
        self._open = True
        self._tallies: dict[_Key, _Tally] = {}
        self._pending: dict[int, tuple[_Tally, int, float]] = {}
        self._moments: list[Moment] = []
        self._opening: list[tuple[Moment, ...]] = []
        self._last: deque[tuple[Moment, ...]] = deque(maxlen=_SEQUENCES)
        self._subjects: dict[int, tuple[str, Any]] = {}
        self._patches: list[patching.Patch] = []
        os.register_at_fork(after_in_child=self.close)

    # --- for observers ----------------------------------------------------------------------

    def event(
        self,
        kind: str,
        subject: str = "",
        seconds: float = 0.0,
        at: tuple[str, int, str] | None = None,
        above: int = 1,
        **facts: Any,
    ) -> None:
        """Something happened, at the user's line.

        Args:
            kind: what.
            subject: whom it was about, from `subject`.
            seconds: how long it took.
            at: the place when it was looked up before; None: the user's innermost frame.
            above: frames between the user's code and the caller, to look at no more than needed.
            facts: plain data; of several values at one place the last one is kept.
        """
        if not self._open:
            return
        key = kind, at or users_frame(above)
        tally = self._tallies.get(key)
        if tally is None:
            if len(self._tallies) >= _PLACES:
                return
            tally = self._tallies[key] = _Tally(len(self._tallies))
        tally.count += 1
        tally.total += seconds
        if facts:
            tally.facts.update(facts)
        _, count, spent = self._pending.get(tally.index, (tally, 0, 0.0))
        self._pending[tally.index] = tally, count + 1, spent + seconds
        if len(self._moments) < _MOMENTS:
            self._moments.append(Moment(tally.index, kind, subject))

    @contextmanager
    def timed(self, kind: str, subject: str = "", **facts: Any) -> Iterator[None]:
        """An event that lasts as long as the block."""
        at, begun = users_frame(2), time.perf_counter()
        try:
            yield
        finally:
            self.event(kind, subject, time.perf_counter() - begun, at, **facts)

    def subject(self, thing: Any, noun: str) -> str:
        """A name for an object that stays the same: "optimizer 0"."""
        known = self._subjects.get(id(thing))
        if known is None:  # the object is kept alive, so that its id stays its own
            number = sum(name.startswith(noun) for name, _ in self._subjects.values())
            known = self._subjects[id(thing)] = f"{noun} {number}", thing
        return known[0]

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Assign to an attribute of torch (or any library) until observing ends."""
        self._patches.append(patching.replace(owner, name, new))

    def wrap(
        self,
        owner: Any,
        name: str,
        kind: str,
        describe: Callable[..., dict[str, Any]] | None = None,
        noun: str = "",
    ) -> None:
        """Log an event of this kind for every call of `owner.name`, with its time.

        Args:
            owner: a class or module.
            name: the function's or method's.
            kind: of the event.
            describe: called with the call's arguments before the call; its result is the
                event's facts. An entry "kind" in it takes the place of `kind`.
            noun: when given, the event's subject is the first argument (self).
        """
        original = getattr(owner, name)
        log = self

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            # The script's own torch.compile traces the original, not what looks at frames.
            if torch.compiler.is_compiling() or not log._open:
                return original(*args, **kwargs)
            facts = describe(*args, **kwargs) if describe is not None else {}
            subject = log.subject(args[0], noun) if noun else ""
            at, begun = users_frame(), time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                what = facts.pop("kind", kind)
                log.event(what, subject, time.perf_counter() - begun, at, **facts)

        wrapped.__name__, wrapped.__doc__ = name, getattr(original, "__doc__", None)
        wrapped.__wrapped__ = original  # type: ignore[attr-defined]
        self.replace(owner, name, wrapped)

    # --- for the conductor ------------------------------------------------------------------

    def iteration_ended(self, plain: bool) -> None:
        """What happened since the last border belongs to one iteration."""
        if self.observing and plain:
            for tally, count, seconds in self._pending.values():
                tally.observed += count
                tally.seconds += seconds
        self._pending.clear()
        if len(self._opening) < _SEQUENCES:
            self._opening.append(tuple(self._moments))
        if plain:
            self._last.append(tuple(self._moments))
        self._moments = []

    def restore(self) -> None:
        """Undo every replacement, last in first out; nothing is written any more."""
        self._open = False
        for patch in reversed(self._patches):
            patching.restore(patch)
        self._patches = []

    def close(self) -> None:
        """Write nothing any more, in this process only."""
        self._open = False

    def events(self) -> tuple[Event, ...]:
        """Everything so far; the position is the index that moments refer to."""
        return tuple(
            Event(
                kind=kind,
                place=place(*at) if at is not None else None,
                count=tally.count,
                observed=tally.observed,
                seconds=tally.seconds,
                total_seconds=tally.total,
                facts=tally.facts,
            )
            for (kind, at), tally in self._tallies.items()
        )

    def sequences(self) -> tuple[tuple[Moment, ...], ...]:
        """The order of events in the last plain iterations."""
        return tuple(self._last)

    def opening(self) -> tuple[tuple[Moment, ...], ...]:
        """The order of events in the first iterations, what came before them in the first."""
        return tuple(self._opening)
