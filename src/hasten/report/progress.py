"""What is going on during a search: a live display on a terminal, a line a candidate elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from hasten.records import Profile, Ratio, Tried, Value
from hasten.report.phrases import candidate, duration, interval, safe, times, value, with_interval


def describe(tried: Tried) -> str:
    """A finished candidate on one line."""
    figures = "" if tried.ratio is None else f" {times(tried.ratio)}"
    if tried.low is not None and tried.high is not None:
        figures += f" ({interval(tried.low, tried.high)})"
    reason = f": {tried.reason}" if tried.reason else ""
    return f"{candidate(tried)}: {tried.verdict}{figures}{reason}"


class Lines:
    """Progress without a terminal: a line when something is finished, nothing in between."""

    def __init__(self, stream: IO[str], prefix: str = "") -> None:
        self.stream, self._prefix = stream, prefix
        self._confirming = False

    def say(self, text: str) -> None:
        """Write a line; a reader that has gone away is no reason to end a search."""
        try:
            self.stream.write(safe(self._prefix + text, self.stream) + "\n")
            self.stream.flush()
        except (BrokenPipeError, ValueError):
            return

    def watching(self, done: int, wanted: int) -> None:
        """Say once that the script is watched."""
        if not done:
            self.say(f"starting the script, to watch {wanted} iterations")

    def profiled(self, profile: Profile) -> None:
        """Say how long an iteration takes."""
        self.say(f"an iteration takes {1000 * profile.iteration:.1f} ms")

    def trying(self, name: str, value: Value, ratio: Ratio | None, pairs: int, left: float) -> None:
        """Nothing: the line comes when it is finished."""

    def compiling(self, what: str) -> None:
        """Say what is compiled, since nothing else may be heard for minutes."""
        self.say(f"compiling for {what}, which is not part of the budget")

    def tried(self, tried: Tried) -> None:
        """Say what became of a candidate."""
        self.say(describe(tried))

    def confirming(self, ratio: Ratio | None, turns: int, left: float) -> None:
        """Say once that the plan is being confirmed."""
        if not self._confirming:
            self._confirming = True
            self.say("confirming: the script as it is and the plan take turns")

    def pairing(self, done: int, wanted: int) -> None:
        """Say once that loss curves are compared."""
        if not done:
            self.say(f"comparing losses with and without the plan: {_pairs(wanted)}")

    def note(self, text: str) -> None:
        """Say it."""
        self.say(f"note: {text}")


class Display:
    """Progress on a terminal: finished candidates above, what is being measured below."""

    def __init__(self, console: Console, budget: float) -> None:
        self.console = console
        self.live = Live(console=console, refresh_per_second=2, transient=True)
        self._left = budget
        self._compiling = False
        self._show("starting the script")

    def _show(self, text: str, left: float | None = None) -> None:
        self._left = self._left if left is None else left
        remains = (f"{duration(self._left)} left  ", "dim")
        line = Text.assemble(remains, text, no_wrap=True, overflow="ellipsis")
        self.live.update(Spinner("line", text=line))

    def watching(self, done: int, wanted: int) -> None:
        """Count the watched iterations."""
        began = f"iteration {done} of {wanted}" if done else "waiting for its first iteration"
        self._show(f"watching the script as it is: {began}")

    def profiled(self, profile: Profile) -> None:
        """Keep how long an iteration takes."""
        self.console.print(Text(f"an iteration takes {1000 * profile.iteration:.1f} ms"))

    def trying(self, name: str, value: Value, ratio: Ratio | None, pairs: int, left: float) -> None:
        """Show the running ratio; a compilation that was announced comes before the first one."""
        if ratio is None and self._compiling:
            return
        self._compiling = False
        self._show(f"trying {_label(name, value)}: {_running(ratio, pairs, 'pair')}", left)

    def compiling(self, what: str) -> None:
        """Show since when."""
        self._compiling = True
        since = time.strftime("%H:%M:%S")
        self._show(f"compiling for {what} since {since}, which is not part of the budget")

    def tried(self, tried: Tried) -> None:
        """Keep what became of a candidate."""
        self._compiling = False
        style = {"faster": "green", "slower": "red"}.get(tried.verdict, "")
        self.console.print(Text(describe(tried), style=style))

    def confirming(self, ratio: Ratio | None, turns: int, left: float) -> None:
        """Show the running end-to-end ratio."""
        self._show(f"confirming the plan from end to end: {_running(ratio, turns, 'turn')}", left)

    def pairing(self, done: int, wanted: int) -> None:
        """Count the pairs of runs, which are not part of the budget."""
        self._show(f"comparing losses with and without the plan: {_pairs(wanted)}, {done} done", 0)

    def note(self, text: str) -> None:
        """Keep it."""
        self.console.print(Text(f"note: {text}", style="yellow"))


def _label(name: str, what: Value) -> str:
    return f"{name} {value(what)}".strip()


def _pairs(wanted: int) -> str:
    return f"{wanted} pair{'' if wanted == 1 else 's'} of runs, each from seeds of its own"


def _running(ratio: Ratio | None, number: int, noun: str) -> str:
    if ratio is None:
        return "first blocks"
    return f"{with_interval(ratio)} after {number} {noun}{'' if number == 1 else 's'}"


@contextmanager
def progress(budget: float, stream: IO[str] | None = None) -> Iterator[Lines | Display]:
    """Something that can be told how a search goes on.

    Args:
        budget: seconds of measuring.
        stream: where it is shown; stderr when None.
    """
    stream = stream or sys.stderr
    console = Console(
        file=stream, no_color="NO_COLOR" in os.environ or None, highlight=False, soft_wrap=False
    )
    if not console.is_terminal or console.is_dumb_terminal:
        yield Lines(stream)
        return
    display = Display(console, budget)
    with display.live:
        yield display
