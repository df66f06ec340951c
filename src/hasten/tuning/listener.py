"""Who is told how a search goes on; the terminal's display is one."""

from __future__ import annotations

from typing import Protocol

from hasten.records import Profile, Ratio, Tried, Value


class Listener(Protocol):
    """Called while a search runs; every call returns at once."""

    def watching(self, done: int, wanted: int) -> None:
        """The script is watched as it is."""

    def profiled(self, profile: Profile) -> None:
        """Watching has ended."""

    def trying(self, name: str, value: Value, ratio: Ratio | None, pairs: int, left: float) -> None:
        """A candidate is measured; `left` seconds of measuring remain."""

    def compiling(self, what: str) -> None:
        """A compilation begins, which is not part of the budget."""

    def tried(self, tried: Tried) -> None:
        """A candidate is done with."""

    def confirming(self, ratio: Ratio | None, turns: int, left: float) -> None:
        """Baseline and plan run in turns."""

    def pairing(self, done: int, wanted: int) -> None:
        """Loss curves of several seeds are compared; so many pairs of runs are done."""

    def note(self, text: str) -> None:
        """Something that the user should know."""
