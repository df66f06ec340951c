"""The ledger: what happens in a training, put down iteration by iteration.

Events come before it is known which loader or optimizer makes an iteration; they wait until then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from hasten.instrument.verify import facts
from hasten.verification import Counted, Epoch

BATCH, BACKWARD, STEP, SCHEDULED, PASS = "batch", "backward", "step", "scheduled", "pass"


@dataclass
class Row:
    """One iteration as it fills."""

    losses: list[torch.Tensor] = field(default_factory=list)
    samples: int | None = None
    tokens: int | None = None
    indices: str = ""
    content: str = ""
    steps: int = 0
    scheduler_steps: int = 0
    rates: tuple[Any, ...] = ()  # numbers, or tensors that are read later
    backwards: int = 0

    def counted(self) -> Counted:
        """As a record; reads losses from their device."""
        losses = [float(loss) for loss in self.losses]
        return Counted(
            loss=sum(losses) / len(losses) if losses else None,
            backwards=self.backwards,
            samples=self.samples,
            tokens=self.tokens,
            indices=self.indices,
            content=self.content,
            steps=self.steps,
            scheduler_steps=self.scheduler_steps,
            rates=tuple(map(float, self.rates)),
        )


@dataclass(frozen=True)
class Batch:
    """One batch as it went to the script."""

    samples: int | None
    tokens: int | None
    content: str
    indices: tuple[Any, ...] | None  # of its samples; None: the index stream isn't ours
    digest: str = ""  # of the indices, where no epochs are counted


class Ledger:
    """Rows, one for each iteration, and whole epochs.

    Args:
        opens: whether an event of this kind from this source begins an iteration; None: not
            known yet.
    """

    def __init__(self, opens: Callable[[str, Any], bool | None]) -> None:
        self._opens = opens
        self.rows: list[Row] = []
        self.epochs: list[Epoch] = []
        self._waiting: list[tuple[str, Any, Any]] = []
        self._epoch: Counter[Any] = Counter()
        self._whole = True  # nothing of the present epoch was missed

    def event(self, kind: str, source: Any, what: Any = None) -> None:
        """Something has happened."""
        self._waiting.append((kind, source, what))
        while self._waiting:
            opens = self._opens(*self._waiting[0][:2])
            if opens is None:
                return
            self._put(opens, *self._waiting.pop(0))

    def _put(self, opens: bool, kind: str, source: Any, what: Any) -> None:
        if opens:
            self.rows.append(Row())
        if kind == BATCH and not opens:
            return  # of another loader
        if kind == PASS:
            self._passed()
        elif self.rows:
            getattr(self, "_" + kind)(self.rows[-1], what)

    def _batch(self, row: Row, batch: Batch) -> None:
        row.samples, row.tokens, row.content = batch.samples, batch.tokens, batch.content
        if batch.indices is None:
            row.indices, self._whole = batch.digest, False
            return
        row.indices = facts.multiset(batch.indices)
        self._epoch.update(batch.indices)

    def _backward(self, row: Row, loss: torch.Tensor | None) -> None:
        row.backwards += 1
        if loss is not None:
            row.losses.append(loss)

    def _step(self, row: Row, rates: tuple[Any, ...]) -> None:
        row.steps += 1
        row.rates = (*row.rates, *rates)

    def _scheduled(self, row: Row, what: None) -> None:
        row.scheduler_steps += 1

    def _passed(self) -> None:
        """The training loader has given all its batches."""
        if self._whole and self._epoch:
            count = sum(self._epoch.values())
            self.epochs.append(Epoch(count, len(self._epoch), facts.counted(self._epoch)))
        self.abandon()

    def abandon(self) -> None:
        """An epoch begins, whatever has become of the one before."""
        self._epoch, self._whole = Counter(), True
