"""The seeds of a pair: two runs of a script from the same random states.

A script that seeds nothing is seeded here, before its first draw. A script that seeds itself says
the same seed in every run; so a pair's *offset* is added to each seed that it gives to one of the
global generators (`random.seed`, `numpy.random.seed`, `torch.manual_seed` and those of
accelerators), and to that of a generator which it hands to a DataLoader. Generators that it builds
for itself (`numpy.random.default_rng(3)`, `random.Random(3)`) keep their seeds: they mostly choose
the data or split it, and pairs should train on the same.

Nothing here is imported before the script imports it: callbacks wait for the modules.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from hasten.instrument import patching

#: Where a script that seeds nothing starts.
FIRST = 20_250_917
_STRIDE = 1009  # between two pairs, so that seeds such as "seed + rank" don't meet
_NUMPY_SEEDS = 2**32
_MODULES = ("random", "numpy.random", "torch")


class Seeding:
    """One pair's seeds in one process.

    Attributes:
        offset: what is added to the script's own seeds; 0 for the first pair.
        moved: names of what the script has seeded itself.
    """

    def __init__(self, pair: int) -> None:
        self.offset = pair * _STRIDE
        self.moved: dict[str, None] = {}
        self._generators: list[Any] = []
        self._made = 0
        self._inside = False

    def patches_for(self, name: str) -> Callable[[Any], None] | None:
        """What is to be called once the module of this name has been imported."""
        return getattr(self, "_" + name.replace(".", "_")) if name in _MODULES else None

    def begin(self) -> None:
        """Seed what has been imported already."""
        for name in _MODULES:
            module, wanted = sys.modules.get(name), self.patches_for(name)
            if module is not None and wanted is not None:
                wanted(module)

    @property
    def _start(self) -> int:
        return FIRST + self.offset

    # --- modules ---------------------------------------------------------------------------

    def _random(self, module: Any) -> None:
        module.seed(self._start)
        self._shift(module, "seed", "random.seed")

    def _numpy_random(self, module: Any) -> None:
        module.seed(self._start % _NUMPY_SEEDS)
        self._shift(module, "seed", "numpy.random.seed", _NUMPY_SEEDS)
        original, seeding = module.default_rng, self

        @functools.wraps(original)
        def default_rng(seed: Any = None) -> Any:
            if seed is not None:
                return original(seed)
            seeding._made += 1  # it would have been seeded by the clock
            return original([seeding._start, seeding._made])

        patching.replace(module, "default_rng", default_rng)

    def _torch(self, module: Any) -> None:
        # Accelerators are seeded by it as well, as soon as they are used.
        module.manual_seed(self._start)
        shifted = self._shift(module, "manual_seed", "torch.manual_seed")
        patching.replace(module.random, "manual_seed", shifted)
        for device in ("cuda", "xpu", "mps"):
            owner = getattr(module, device, None)
            for name in ("manual_seed", "manual_seed_all"):
                if hasattr(owner, name):
                    self._shift(owner, name, f"torch.{device}.{name}")
        self._clock(module)

    def _clock(self, torch: Any) -> None:
        """`torch.seed()` seeds by the clock: here, by the pair."""
        seeding, seed = self, torch.manual_seed

        def by_clock() -> int:
            seeding._made += 1
            seed(FIRST + seeding._made)
            return FIRST + seeding._made

        patching.replace(torch, "seed", by_clock)

    def _shift(self, owner: Any, name: str, called: str, below: int = 0) -> Any:
        """Add the offset to the seed that the script gives to `owner.name`."""
        original, seeding = getattr(owner, name), self

        @functools.wraps(original)
        def seed(given: Any = None, *args: Any, **kwargs: Any) -> Any:
            if "seed" in kwargs:
                given = kwargs.pop("seed")
            elif "a" in kwargs:
                given = kwargs.pop("a")
            if given is None:  # by the clock
                seeding._made += 1
                return original(FIRST + seeding.offset + seeding._made, *args, **kwargs)
            if seeding._inside:  # torch passes it on to every accelerator
                return original(given, *args, **kwargs)
            seeding.moved[called] = None
            seeding._inside = True
            try:
                return original(seeding.shifted(given, below), *args, **kwargs)
            finally:
                seeding._inside = False

        patching.replace(owner, name, seed)
        return seed

    def shifted(self, seed: Any, below: int = 0) -> Any:
        """The seed of this pair: a whole number moved, anything else with the offset beside it."""
        if not self.offset:
            return seed
        if isinstance(seed, (str, bytes, bytearray)):
            return f"{seed!r} {self.offset}"
        try:
            number = int(seed) + self.offset
        except (TypeError, ValueError):  # numpy takes several numbers
            return [*map(int, seed), self.offset]
        return number % below if below else number

    # --- loaders ---------------------------------------------------------------------------

    def loader(self, loader: Any) -> None:
        """Move a generator that the script has given to this loader, once."""
        generator = getattr(loader, "generator", None)
        if generator is None or not self.offset:
            return
        if any(generator is known for known in self._generators):
            return
        self._generators.append(generator)
        generator.manual_seed(generator.initial_seed() + self.offset)
        self.moved["the generator of a DataLoader"] = None
