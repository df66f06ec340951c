"""Fetch all items of a batch at once where they are rows of tensors or arrays.

What it does
    A DataLoader asks a dataset for one item after the other and puts them together again. Where
    an item is nothing but a row, the rows of a whole batch are taken by one indexing operation.
    torch's TensorDataset and subsets of it are known. The source of other classes is read: a
    `__getitem__` that takes `self.name[index]` of tensors, arrays and lists, converts it
    (`.float()`, `torch.tensor(...)`) and returns it in a tuple or dict is such a one; any other,
    with a condition or a random number in it, is left alone. So is a collate function of the
    script's own.

Why it is faster
    An item of a small tensor costs some microseconds of Python twice, for taking it and for
    putting it together, hundreds of times a batch. One indexing costs the same for all.

When it helps
    Data in memory and small models: tables, embeddings, digits. In worker processes as well as
    in the script's own.

Numerics
    Class `exact`: the same batches to the bit, which is checked on the next ones of the script.

Example
    for indices in torch.randperm(len(x)).split(batch_size):
        inputs, targets = x[indices], y[indices]

Source
    PyTorch, "torch.utils.data", disabling automatic batching; `__getitems__` of torch's fetcher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.records import Profile, Value

if TYPE_CHECKING:
    from hasten.environment import Environment


class BatchedFetch(Optimisation):
    """One indexing for a batch."""

    name: ClassVar[str] = "batched-fetch"
    numerics: ClassVar[Numerics] = Numerics.EXACT
    fixes: ClassVar[tuple[str, ...]] = ("data-bound", "slow-collate")
    order: ClassVar[int] = 13
    likely: ClassVar[bool] = True
    warmup: ClassVar[int] = 2
    data_path: ClassVar[bool] = True
    needs: ClassVar[str] = "loader"
    touches: ClassVar[str] = "batches"
    excludes: ClassVar[tuple[str, ...]] = ("cache-items",)

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Datasets whose items are rows."""
        loader = profile.loader
        if loader is None:
            return Applies(reason="the script trains without a DataLoader")
        if not loader.owned:
            return Applies(reason=loader.not_owned_because or "the loader can't be taken over")
        if loader.one_by_one:
            return Applies(reason=f"items of {loader.dataset} come one by one: {loader.one_by_one}")
        return Applies(values=(True,))

    def enable(self, seams: Seams, value: Value) -> None:
        """From the next batch on."""
        if seams.loader is not None:
            seams.loader.whole.set(True)

    def disable(self, seams: Seams) -> None:
        """As the script has it."""
        if seams.loader is not None:
            seams.loader.whole.set(False)

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """Batches can be fetched so, with the dataset as it is now."""
        if seams.loader is None:
            return "there is no loader of ours"
        return seams.loader.whole.trouble or None
