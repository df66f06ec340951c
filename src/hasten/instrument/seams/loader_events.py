"""What the loader seam tells, and to whom after hasten has gone."""

from __future__ import annotations

from typing import Any, Protocol

from torch.utils.data import DataLoader


class LoaderEvents(Protocol):
    """What is told about every loader of the script, on its hot path."""

    def fetching(self, loader: DataLoader[Any]) -> None:
        """A batch is asked for: an iteration border. The configuration may change in here."""

    def fetched(self, loader: DataLoader[Any], batch: Any) -> None:
        """The batch is there; the script gets it next."""

    def epoch_started(self, loader: DataLoader[Any]) -> None:
        """The script has called `iter`; nothing is started yet, so it may be configured in here."""

    def epoch_ended(self, loader: DataLoader[Any]) -> None:
        """There is no further batch."""


class Silence:
    """Events after hasten has gone."""

    def fetching(self, loader: DataLoader[Any]) -> None: ...
    def fetched(self, loader: DataLoader[Any], batch: Any) -> None: ...
    def epoch_started(self, loader: DataLoader[Any]) -> None: ...
    def epoch_ended(self, loader: DataLoader[Any]) -> None: ...
