"""Observes checkpoints: event "save" for every `torch.save`, with its time."""

from __future__ import annotations

from typing import ClassVar

import torch

from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.log import Log


class Saving(Observer):
    """Where checkpoints are written."""

    name: ClassVar[str] = "saving"

    def start(self, log: Log) -> None:
        """Hook `torch.save`."""
        log.wrap(torch, "save", "save")
