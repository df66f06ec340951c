"""Seam: the batch size of the training loader, set where the script builds it.

So len(loader), and with it schedules, progress bars and logs, agree with what is trained. The
loader is recognised by what it is built from. A batch size that the script keeps elsewhere, in a
model of fixed shape above all, stays what it is.
"""

from __future__ import annotations

import inspect
import os
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from hasten.instrument import patching
from hasten.instrument.seams.loader_facts import length_of

_MISSING = "the training loader was not built again as it was when the plan was made"


class BatchSizes:
    """Gives one kind of loader another batch size.

    Args:
        wanted: "size", and what tells the loader: "from" (its own size), "dataset" (class name),
            "items" (None where the dataset has no length) and "shuffled".

    Attributes:
        changed: loaders that were built with the wanted size.
    """

    def __init__(self, wanted: dict[str, Any]) -> None:
        self._wanted = wanted
        self._process = os.getpid()
        self.changed = 0
        self._patch: patching.Patch | None = None

    @property
    def trouble(self) -> str:
        """Why nothing was changed; empty: something was."""
        return "" if self.changed else _MISSING

    def install(self) -> None:
        """Change loaders that are built from now on."""
        original, sizes = DataLoader.__init__, self
        signature = inspect.signature(original)

        def __init__(self: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
            if os.getpid() == sizes._process:
                bound = signature.bind(self, *args, **kwargs)
                sizes._resize(bound.arguments)
                original(*bound.args, **bound.kwargs)
            else:
                original(self, *args, **kwargs)

        self._patch = patching.replace(DataLoader, "__init__", __init__)

    def uninstall(self) -> None:
        """Leave loaders alone that are built from now on."""
        if self._patch is not None:
            patching.restore(self._patch)
            self._patch = None

    def _resize(self, given: dict[str, Any]) -> None:
        """Change the arguments of a loader if it is the one."""
        batches = given.get("batch_sampler")
        own = given.get("batch_size", 1) if batches is None else _size(batches)
        if own != self._wanted["from"] or not self._is_it(given, batches):
            return
        size = int(self._wanted["size"])
        if batches is None:
            given["batch_size"] = size
        else:
            given["batch_sampler"] = BatchSampler(batches.sampler, size, batches.drop_last)
        self.changed += 1

    def _is_it(self, given: dict[str, Any], batches: Any) -> bool:
        dataset = given["dataset"]
        sampler = given.get("sampler") if batches is None else batches.sampler
        shuffled = bool(given.get("shuffle")) or not (
            sampler is None or isinstance(sampler, SequentialSampler)
        )
        found = {
            "dataset": type(dataset).__name__,
            "items": None if isinstance(dataset, IterableDataset) else length_of(dataset),
            "shuffled": shuffled and not isinstance(dataset, IterableDataset),
        }
        return all(self._wanted.get(name) == value for name, value in found.items())


def _size(batches: Any) -> int | None:
    """The size of torch's own batch sampler; None for any other."""
    return batches.batch_size if type(batches) is BatchSampler else None
