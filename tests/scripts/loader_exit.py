"""Ends in the middle of epochs, in the way that the first argument names, with pools alive."""

from __future__ import annotations

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

from hasten.instrument.seams.loader import LoaderSeams


class Events:
    def fetching(self, loader: object) -> None: ...
    def fetched(self, loader: object, batch: object) -> None: ...
    def epoch_started(self, loader: object) -> None: ...
    def epoch_ended(self, loader: object) -> None: ...


seams = LoaderSeams(Events())
seams.install()
data = TensorDataset(torch.arange(100))
kept = DataLoader(data, 2, num_workers=1)
iter(kept)
seams.owned(kept).configure(2, 2, persistent=True)
list(kept)
own = DataLoader(data, 2, num_workers=1, persistent_workers=True)
under_way = iter(own)
next(under_way)
seams.owned(own).configure(2, 1, persistent=False)
next(under_way)
print("ready", flush=True)
if sys.argv[1] == "exception":
    raise ValueError("the script's own")
if sys.argv[1] == "exit":
    sys.exit(7)
if sys.argv[1] == "close":
    seams.close()
