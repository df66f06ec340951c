"""Notices a script that changes its dataset while workers of ours hold an older copy.

A script without workers may set `dataset.difficulty` in the middle of an epoch and is heard at
once; workers wouldn't hear it before they are started anew. While they feed, no item is fetched
in this process, so a dataset that changes here is changed by the script itself.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from hasten.instrument.seams.loader_fingerprint import Fingerprint, fingerprint

_LOOKS = 4  # a look at a large dataset takes a moment; a script that does it does it soon


class Staleness:
    """Compares the dataset at both ends of the time in which workers feed.

    Attributes:
        trouble: one line, when the script was caught at it; empty: it wasn't.
    """

    def __init__(self) -> None:
        self.trouble = ""
        self._looks = _LOOKS
        self._mark: Fingerprint | None = None

    def begin(self, loader: DataLoader[Any]) -> None:
        """Workers begin to feed a loader that has none of its own."""
        if self._looks and self._mark is None:
            self._looks -= 1
            self._mark = _look(loader)

    def end(self, loader: DataLoader[Any]) -> None:
        """... and have stopped, or the epoch is over."""
        mark, self._mark = self._mark, None
        if mark is not None and _look(loader) not in (mark, None):
            self.trouble = "the script changes its dataset during an epoch; workers don't see that"


def _look(loader: DataLoader[Any]) -> Fingerprint | None:
    return fingerprint(loader.dataset, loader.collate_fn)[0]
