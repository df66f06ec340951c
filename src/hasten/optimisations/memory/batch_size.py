"""Train with batches of another size.

What it does
    The training loader is built with another batch size, in a new process, so that its length,
    schedules and logs agree with what is trained. Optimizer steps become fewer or more by the
    same factor. `hasten batch` says by which rule and factor the learning rate is usually changed:
    in proportion to the batch, by the square root for Adam and its kin. A plan that it writes with
    `--allow statistics` also holds these factors (`lr`, by optimizer): each step is then made with
    so many times the rate that the script has set.

Why it is faster
    A larger batch uses cores, caches and above all GPUs better, and spreads what each iteration
    costs over more samples. But it also makes fewer steps of an epoch, so samples a second alone
    say nothing about the time to a loss.

When it helps
    Hardware that small batches leave idle, as long as the batch stays below the gradient noise
    scale: beyond it, more samples in a step hardly make the step better. `hasten batch` measures
    both. Custom batch samplers, and loaders that are given whole batches, are left as they are.

Numerics
    Class `statistics`: other batches are other training. It is part of a plan only by
    `hasten batch --allow statistics --output PATH`.

Example
    loader = DataLoader(dataset, batch_size=96, shuffle=True)

Source
    McCandlish et al., "An Empirical Model of Large-Batch Training" (2018); Qiao et al.,
    "Pollux" (OSDI 2021); Goyal et al., "Accurate, Large Minibatch SGD" (2017).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.records import LoaderFacts, Profile, Value

if TYPE_CHECKING:
    from hasten.environment import Environment

_KEYS = {"size", "from", "dataset", "items", "shuffled"}


class BatchSize(Optimisation):
    """Batch size of the training loader, from its construction on."""

    name: ClassVar[str] = "batch-size"
    numerics: ClassVar[Numerics] = Numerics.STATISTICS
    live: ClassVar[bool] = False
    order: ClassVar[int] = 96
    needs: ClassVar[str] = "loader"
    one_by_one: ClassVar[bool] = True
    searched: ClassVar[bool] = False

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Loaders whose batches torch puts together by a number."""
        loader = profile.loader
        if loader is None:
            return Applies(reason="batches don't come from a DataLoader")
        reason = unsizable(loader)
        if reason or loader.batch_size is None:
            return Applies(reason=reason)
        sizes = [
            loader.batch_size * 2,
            *([loader.batch_size // 2] if loader.batch_size > 1 else []),
        ]
        return Applies(tuple(sized(loader, size) for size in sizes))

    def enable(self, seams: Seams, value: Value) -> None:
        """It is in force from the start of the process."""

    def disable(self, seams: Seams) -> None:
        """Only another process builds its loader anew."""

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """The training loader has that size."""
        if seams.loader is None:
            return "the training loader is not there"
        now = seams.loader.batch_size
        if now == value["size"]:
            return None
        return f"the training loader was built with {now} samples a batch, not {value['size']}"

    def check(self, value: Value) -> None:
        """A size, and what tells the loader."""
        if not isinstance(value, dict) or not _KEYS - {"items"} <= value.keys() <= _KEYS | {"lr"}:
            raise ValueError(f"a table with {', '.join(sorted(_KEYS))}")
        for name in ("size", "from"):
            number = value[name]
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ValueError(f"a whole number above 0 for {name}")
        rates = value.get("lr", {})
        if not isinstance(rates, dict) or not all(_factor(factor) for factor in rates.values()):
            raise ValueError("numbers above 0 for lr, by the optimizer's class")


def _factor(value: Value) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 < value < float("inf")


def unsizable(loader: LoaderFacts) -> str:
    """Why a loader can't be given another batch size, in a user's words; empty: it can."""
    if loader.batch_size is None:
        return "its loader is given whole batches, by the dataset or a batch sampler of its own"
    if loader.sampler.endswith(" (batch sampler)"):
        name = loader.sampler.partition(" ")[0]
        return f"its batches are put together by a batch sampler of its own ({name})"
    return ""


def sized(loader: LoaderFacts, size: int) -> dict[str, Value]:
    """The value that gives this loader another batch size."""
    value: dict[str, Value] = {
        "size": size,
        "from": loader.batch_size,
        "dataset": loader.dataset,
        "shuffled": loader.shuffled,
    }
    if loader.dataset_items is not None:  # TOML knows no null
        value["items"] = loader.dataset_items
    return value
