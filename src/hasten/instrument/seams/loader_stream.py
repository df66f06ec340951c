"""The index stream of one epoch, and the gates through which pools take from it."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

from hasten.instrument.seams import loader_seeded as seeded
from hasten.instrument.seams.loader_torch import Key

#: Index batches that were handed to a pool and whose batch the script hasn't had yet, in the
#: order of the stream, each with the key of the pool.
Order = deque[tuple[Key, Any]]


class IndexStream:
    """The script's own sampler, read once and in order, whoever fetches.

    Attributes:
        sampler: the script's batch sampler, or its sampler where the loader doesn't collate.
        begun: something has been read since the start of the epoch.
        key: what items are seeded by; None: they aren't.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.begun = False
        self.key: seeded.Key | None = None
        self._iterator: Iterator[Any] = iter(())
        self._ahead: deque[Any] = deque()
        self._draws = seeded.may_repeat(sampler)
        self._tagged = 0

    def restart(self) -> None:
        """Begin an epoch: torch calls `iter` on the sampler here, and so do we."""
        self._ahead.clear()
        self.begun = False
        self._iterator = iter(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._ahead:
            return self._ahead.popleft()
        self.begun = True
        return next(self._iterator)

    def tagged(self, index: Any) -> Any:
        """An index batch as it is handed to a pool."""
        if self.key is None:
            return index
        self._tagged += 1
        return seeded.Tagged(index, self.key._replace(draw=self._tagged if self._draws else 0))

    def read_ahead(self, count: int) -> None:
        """Ask the sampler `count` times now, as torch does when it primes its workers."""
        self.begun = True
        for _ in range(count):
            with contextlib.suppress(StopIteration):
                self._ahead.append(next(self._iterator))

    def peek(self, count: int) -> list[Any]:
        """The next index batches, which stay in the stream."""
        if len(self._ahead) < count:
            self.read_ahead(count - len(self._ahead))
        return list(self._ahead)[:count]

    def give_back(self, indices: list[Any]) -> None:
        """Put index batches back that no pool will deliver any more."""
        self._ahead.extendleft(reversed(indices))
        self._tagged = max(0, self._tagged - len(indices))


class Feed:
    """What a pool takes for its sampler: the shared stream, behind a gate.

    A shut gate looks like the end of the stream, so torch's iterator lets its queue run empty.

    Attributes:
        key: of the pool.
        stream: of the epoch that the pool works for.
        order: where each index batch is noted as it leaves.
        open: whether the pool may take more.
        opening: torch begins the script's epoch: its calls of `iter` reach the sampler.
    """

    def __init__(self, key: Key, stream: IndexStream, order: Order) -> None:
        self.key = key
        self.stream = stream
        self.order = order
        self.open = True
        self.opening = False

    def __iter__(self) -> Iterator[Any]:
        if self.opening:
            self.stream.restart()
        return self

    def __next__(self) -> Any:
        if not self.open:
            raise StopIteration
        index = next(self.stream)
        self.order.append((self.key, index))
        return self.stream.tagged(index)

    def __len__(self) -> int:
        return len(self.stream.sampler)
