"""What `hasten verify` records in a child, and what it concludes in the parent: plain data.

One child runs the script as it is, another with the plan, from the same seeds and over the same
first iterations. `Followed` is what one of them did; `Verification` is what became of all pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Follow:
    """Put `setting` into force and let the script train; answered by a `Followed`.

    It ends when `iterations` in all have passed since the start of the script, or with the script.
    """

    setting: dict[str, Any]
    iterations: int | None = None  # None: to the script's own end


@dataclass(frozen=True)
class Counted:
    """What one iteration did."""

    loss: float | None = None  # mean over its backward passes; None: there was none
    backwards: int = 0
    samples: int | None = None  # in its batch; None: not known
    tokens: int | None = None  # likewise
    indices: str = ""  # digest of the samples' indices, whatever their order; empty: not known
    content: str = ""  # digest of the batch as the script got it; empty: it can't be compared
    steps: int = 0  # of all optimizers
    scheduler_steps: int = 0
    rates: tuple[float, ...] = ()  # of every parameter group at its last step


@dataclass(frozen=True)
class Epoch:
    """The samples of one whole pass over the training loader."""

    samples: int
    distinct: int
    digest: str  # of their multiset


@dataclass(frozen=True)
class Followed:
    """All that a child did since the start of its script."""

    iterations: tuple[Counted, ...] = ()
    ended: bool = False  # the script came to its own end
    epochs: tuple[Epoch, ...] = ()
    still: tuple[str, ...] = ()  # parameters that have not changed by a bit
    slight: tuple[str, ...] = ()  # ... that have, but by far less than most
    without_gradient: tuple[str, ...] = ()  # ... that had none at any step that was looked at
    keys: tuple[str, ...] = ()  # what a checkpoint of models and optimizers holds
    saved: tuple[str, ...] = ()  # keys of what the script itself saved
    no_effect: dict[str, str] = field(default_factory=dict)  # unit -> why it did nothing
    reseeded: tuple[str, ...] = ()  # the script's own seeds that were moved
    losses_an_iteration: float = 1.0  # backward passes
    passed: int = 0  # iterations so far, told or not

    @property
    def losses(self) -> tuple[float, ...]:
        """The loss of each iteration that had one; the last one before it where there is none."""
        found: list[float] = []
        for row in self.iterations:
            found.append(row.loss if row.loss is not None else found[-1] if found else math.nan)
        return tuple(found)


@dataclass(frozen=True)
class Pair:
    """Baseline and plan from the same seeds."""

    number: int  # of the pair, which chooses its seeds
    baseline: tuple[float, ...]  # loss of each iteration
    plan: tuple[float, ...]
    metrics: tuple[float, ...] = ()  # what --metric-regex has read: baseline, plan


@dataclass(frozen=True)
class Judged:
    """Is the plan not worse in one quantity? Differences count as worse when they are positive.

    `low` and `high` are one-sided bounds of the mean difference, each at `confidence`.
    """

    what: str
    verdict: str  # "not worse", "worse", "cannot tell"
    margin: float
    margin_from: str
    baseline: float  # mean over the pairs
    plan: float
    difference: float
    low: float
    high: float
    pairs: int
    confidence: float
    identical: bool = False  # to the bit, in all pairs
    reason: str = ""  # why it can't be told


@dataclass(frozen=True)
class Verification:
    """What came of comparing a plan with the script as it is.

    `verdict` is "holds", "broken" (worse, or an invariant is broken) or "cannot tell".
    """

    verdict: str
    judged: tuple[Judged, ...]
    broken: tuple[str, ...]  # invariants, one line each
    pairs: tuple[Pair, ...]
    iterations: int
    smoothed: int  # iterations at the end whose mean loss is compared
    seeds: str  # how pairs were varied, in one sentence
    setting: dict[str, Any]
    notes: tuple[str, ...] = ()
    shield: str = ""
    seconds: float = 0.0
