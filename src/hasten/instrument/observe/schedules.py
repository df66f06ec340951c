"""Observes learning rate schedulers: when each steps, against its optimizer's steps.

Facts: "schedulers", a list with one entry for each scheduler that stepped (see `Record`).
The step that torch makes while it builds a scheduler doesn't count.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch
from torch.optim import lr_scheduler

from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.log import Log
from hasten.instrument.observe.places import is_users, place

_FRAMES = 40
_WINDOWS = 64
_Stack = tuple[tuple[str, int, str], ...]


@dataclass
class Record:
    """What one scheduler did.

    Attributes:
        optimizer: the one whose learning rate it sets.
        calls: by the user's whole stack of lines: how often; and of these, how often before any
            optimizer had stepped, and after.
        windows: between two steps of the optimizer: (backward passes, scheduler steps).
        rates: initial learning rate, and the one at the optimizer's first step.
    """

    name: str
    optimizer: weakref.ref[Any]
    scheduler: weakref.ref[Any]
    calls: dict[_Stack, list[int]] = field(default_factory=dict)
    windows: list[tuple[int, int]] = field(default_factory=list)
    rates: tuple[float, float] | None = None
    backwards: int = 0
    steps: int = 0
    optimizer_steps: int = 0

    def facts(self, length: int | None) -> dict[str, Any]:
        """Plain data; `length`: batches an epoch."""
        (stack, counts) = max(self.calls.items(), key=lambda item: sum(item[1]))
        scheduler = self.scheduler()
        numbers = sorted(_numbers(scheduler)) if scheduler is not None else []
        return {
            "name": self.name,
            "before": counts[0],
            "after": counts[1],
            "place": asdict(place(*stack[0])),
            "optimizer_steps": self.optimizer_steps,
            "steps": sum(sum(counts) for counts in self.calls.values()),
            "windows": [list(window) for window in self.windows],
            "rates": self.rates,
            "epoch": length,
            "numbers": numbers,
        }


class Schedules(Observer):
    """Order of schedulers and optimizers."""

    name: ClassVar[str] = "schedules"

    def __init__(self) -> None:
        self._records: dict[int, Record] = {}
        self._steps = 0  # of any optimizer, and attempts of a scaler that skipped one
        self._first: dict[int, float] = {}  # learning rate at an optimizer's first step
        self._inside = False

    def start(self, log: Log) -> None:
        """Hook every class of scheduler that has a step of its own."""
        base = lr_scheduler.LRScheduler
        plateau = lr_scheduler.ReduceLROnPlateau
        for cls in {base, plateau, *_below(base), *_below(plateau)}:
            if "step" in vars(cls):
                log.replace(cls, "step", self._seen(vars(cls)["step"]))
        attempt, observer = torch.amp.GradScaler.step, self

        @functools.wraps(attempt)
        def attempted(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            observer._steps += 1
            return attempt(scaler, optimizer, *args, **kwargs)

        log.replace(torch.amp.GradScaler, "step", attempted)

    def _seen(self, step: Any) -> Any:
        observer = self

        @functools.wraps(step)
        def seen(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            if observer._inside:
                return step(scheduler, *args, **kwargs)
            stack, initial = _stack()
            observer._inside = True
            try:
                if not initial and stack:
                    observer._stepped(scheduler, stack)
                return step(scheduler, *args, **kwargs)
            finally:
                observer._inside = False

        return seen

    def _stepped(self, scheduler: Any, stack: _Stack) -> None:
        record = self._records.get(id(scheduler))
        if record is None or record.scheduler() is not scheduler:
            optimizer = getattr(scheduler, "optimizer", None)
            if optimizer is None:
                return
            record = Record(
                type(scheduler).__name__, weakref.ref(optimizer), weakref.ref(scheduler)
            )
            self._records[id(scheduler)] = record
        record.calls.setdefault(stack, [0, 0])[self._steps > 0] += 1
        record.steps += 1

    def before_backward(self, log: Log, tensors: Any) -> None:
        """A backward pass between two steps."""
        for record in self._records.values():
            record.backwards += 1

    def before_step(self, log: Log, optimizer: Any) -> None:
        """A step of the optimizer closes a window."""
        self._steps += 1
        key = id(optimizer)
        if key not in self._first:
            self._first[key] = float(optimizer.param_groups[0]["lr"])
        for record in self._records.values():
            owner = record.optimizer()
            if owner is None or owner is not optimizer:
                continue
            if record.optimizer_steps and len(record.windows) < _WINDOWS:
                record.windows.append((record.backwards, record.steps))
            record.optimizer_steps += 1
            record.backwards = record.steps = 0
            initial = owner.param_groups[0].get("initial_lr")
            if record.rates is None and initial is not None:
                record.rates = float(initial), self._first[key]

    def finish(self, log: Log, conductor: Any) -> dict[str, Any]:
        """All of it as plain data."""
        facts = conductor.loader_facts()
        length = facts.length if facts is not None else None
        return {"schedulers": [r.facts(length) for r in self._records.values() if r.calls]}


def _below(base: Any) -> list[Any]:
    return [c for cls in base.__subclasses__() for c in (cls, *_below(cls))]


def _stack() -> tuple[_Stack, bool]:
    """The user's lines from the inside out, and whether a scheduler is being built."""
    frame = sys._getframe(2)
    lines: list[tuple[str, int, str]] = []
    for _ in range(_FRAMES):
        code = frame.f_code
        if code.co_filename == lr_scheduler.__file__ and code.co_name in (
            "__init__",
            "_initial_step",
        ):
            return (), True
        if is_users(code.co_filename):
            lines.append((code.co_filename, frame.f_lineno, code.co_name))
        if frame.f_back is None:
            break
        frame = frame.f_back
    return tuple(lines), False


def _numbers(thing: Any, depth: int = 8) -> Iterator[int]:
    """Whole numbers above 1 that a schedule is made of, also those in its functions."""
    if isinstance(thing, bool) or depth == 0:
        return
    if isinstance(thing, (int, float)):
        if thing > 1 and float(thing).is_integer():
            yield int(thing)
    elif isinstance(thing, dict):
        for item in list(thing.values())[:50]:
            yield from _numbers(item, depth - 1)
    elif isinstance(thing, (list, tuple)):
        for item in thing[:50]:
            yield from _numbers(item, depth - 1)
    elif isinstance(thing, functools.partial):
        yield from _numbers([thing.func, *thing.args, thing.keywords], depth - 1)
    elif hasattr(thing, "__code__"):
        yield from _function_numbers(thing, depth)
    elif isinstance(thing, lr_scheduler.LRScheduler):
        running = ("last_epoch", "_step_count", "optimizer", "base_lrs", "_last_lr")
        kept = {k: v for k, v in vars(thing).items() if k not in running}
        yield from _numbers(kept, depth)
    elif callable(thing) and not isinstance(thing, type) and hasattr(thing, "__dict__"):
        yield from _numbers(vars(thing), depth - 1)


def _function_numbers(function: Any, depth: int) -> Iterator[int]:
    """Constants, closed-over variables, defaults and globals that a function refers to."""
    code = function.__code__
    cells = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
    used = [function.__globals__[n] for n in code.co_names if n in function.__globals__]
    plain = [value for value in used if isinstance(value, (int, float))]
    yield from _numbers(
        [list(code.co_consts), cells, list(function.__defaults__ or ()), plain], depth
    )


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
