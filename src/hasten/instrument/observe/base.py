"""What an observer may look at.

An observer is one file in this folder with one subclass of `Observer`; it is found by discovery.
It puts its hooks in through the log (`log.wrap`, `log.replace`), which takes them out again, and
writes events. It changes nothing: with all observers in force a script's losses stay equal to
the bit. Every call is on the hot path; what takes longer than some microseconds belongs into
`finish`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from hasten.instrument.observe.log import Log
from hasten.instrument.recorder import Iteration


class Observer:
    """One subject that is observed from the import of torch until the end of observing."""

    name: ClassVar[str]

    def start(self, log: Log) -> None:
        """torch has just been imported and the script has used nothing of it yet."""

    def iteration_ended(self, log: Log, iteration: Iteration) -> None:
        """An iteration has ended (also void ones)."""

    def epoch_started(self, log: Log, loader: Any, training: bool) -> None:
        """The script iterates over a loader."""

    def epoch_ended(self, log: Log, loader: Any, training: bool) -> None:
        """It has read the last batch."""

    def fetching(self, log: Log, loader: Any, training: bool) -> None:
        """The script asks for a batch; there may be none left."""

    def fetched(self, log: Log, loader: Any, batch: Any, training: bool) -> None:
        """A batch goes to the script; `training`: of the training loader."""

    def root_entered(self, log: Log, module: Any, training: bool) -> None:
        """A root is called; `training`: gradients on, in the mode in which it trains."""

    def root_left(self, log: Log, module: Any, training: bool) -> None:
        """Its call has ended."""

    def before_backward(self, log: Log, tensors: Any) -> None:
        """A backward pass begins."""

    def after_backward(self, log: Log, tensors: Any) -> None:
        """It has ended; gradients are there."""

    def before_step(self, log: Log, optimizer: Any) -> None:
        """An optimizer steps (also when a GradScaler lets it)."""

    def after_step(self, log: Log, optimizer: Any) -> None:
        """It has stepped."""

    def taken(self) -> float:
        """Seconds since the last call of this that are no part of training, for the account."""
        return 0.0

    def finish(self, log: Log, conductor: Any) -> dict[str, Any]:
        """Observing ends; the script stands at a border. Plain data for `Observed.facts`."""
        return {}
