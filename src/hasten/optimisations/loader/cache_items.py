"""Decode once: keep the part of every item that is the same in all epochs.

What it does
    Splits an item into the part that never changes (reading, decoding, resizing, up to the first
    random transform) and the part that does. The first part is kept when it is first computed,
    in memory that all workers share or in a file under the user's cache folder; from then on
    only the second part runs. The transform is found in the dataset's attributes; torchvision's
    deterministic transforms are known, others are tried. Of a dataset without such a transform,
    whole items are kept where fetching them draws no random number and gives the same twice.

    Not kept are items that draw random numbers before or while the first part is computed, and
    those that hold other values than tensors, arrays, pictures, plain containers and scalars.
    When the dataset's attributes change, everything is computed anew; when it changes again and
    again, keeping is given up. Files of torchvision's folders are looked at (size and time of
    change) whenever their item is read. Only their items outlive the process (`store = "file"`),
    and only where torchvision's own loader and transforms have made them; `hasten cache` lists
    and clears them.

Why it is faster
    Decoding and resizing a photograph takes milliseconds, reading a kept one microseconds. On
    few cores no number of workers makes up for that.

When it helps
    Data-bound training over more than one epoch, most of all on few cores. The first epoch pays
    for itself and for keeping: it is not faster. What doesn't fit is computed as ever; nothing
    that was kept is thrown out for it, since in a shuffled epoch every item is used once.

Numerics
    Class `exact`: the same items to the bit. The part that is kept draws no random number, so
    the same seeds give the same random transforms.

Example
    dataset = TensorDataset(torch.stack([decode(path) for path in paths]), labels)

Source
    PyTorch, "torch.utils.data", map-style datasets; torchvision, "Transforms".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.records import ItemFacts, Profile, Value

if TYPE_CHECKING:
    from hasten.environment import Environment

_WORTH = 1.3  # an item that is read back is at least so much quicker than one that is made
_FITS = 0.1  # of the items at least must find room
_MOST = 2**20  # MiB: more is a mistake


class CacheItems(Optimisation):
    """The deterministic part of every item is computed once."""

    name: ClassVar[str] = "cache-items"
    numerics: ClassVar[Numerics] = Numerics.EXACT
    fixes: ClassVar[tuple[str, ...]] = ("data-bound", "no-workers")
    order: ClassVar[int] = 14
    warmup: ClassVar[int] = 2
    data_path: ClassVar[bool] = True
    needs: ClassVar[str] = "loader"
    touches: ClassVar[str] = "items"

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Items that cost more to make than to read back."""
        loader = profile.loader
        if loader is None:
            return Applies(reason="the script trains without a DataLoader")
        if loader.kind == "iterable":
            return Applies(reason="items of an IterableDataset have no index to keep them under")
        if not loader.owned:
            return Applies(reason=loader.not_owned_because or "the loader can't be taken over")
        if loader.items is None:
            return Applies(reason="the loop does not wait for data")
        return _worth(loader.items)

    def enable(self, seams: Seams, value: Value) -> None:
        """Keep items from the next batch on."""
        if seams.loader is not None:
            seams.loader.items.begin(value)

    def disable(self, seams: Seams) -> None:
        """Compute every item anew."""
        if seams.loader is not None:
            seams.loader.items.end()

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """Items came from what was kept."""
        if seams.loader is None:
            return "there is no loader of ours"
        items = seams.loader.items
        return items.trouble or (None if items.hits else "no item came from what was kept")

    def check(self, value: Value) -> None:
        """A table with where, and how much at most."""
        expected = 'a table such as { store = "memory", mib = 4096 } or { store = "file" }'
        if not isinstance(value, dict) or set(value) - {"store", "mib"}:
            raise ValueError(expected)
        if value.get("store") not in ("memory", "file"):
            raise ValueError(expected)
        mib = value.get("mib", 1)
        if not isinstance(mib, int) or isinstance(mib, bool) or not 1 <= mib <= _MOST:
            raise ValueError(expected)


def _worth(items: ItemFacts) -> Applies:
    """By what a sample of items has shown."""
    if items.refused:
        return Applies(reason=items.refused)
    if items.seconds < _WORTH * items.kept_seconds:
        made, read = items.seconds * 1e6, items.kept_seconds * 1e6
        return Applies(reason=f"an item takes {made:.0f} us, and {read:.0f} us when it was kept")
    if items.room < _FITS * items.total_bytes:
        needed, free = items.total_bytes / 2**30, items.room / 2**30
        return Applies(
            reason=f"all items need {needed:.1f} GiB, and {free:.1f} GiB of memory may be used"
        )
    return Applies(values=({"store": "file" if items.persistent else "memory"},))
