"""What a search has found by now."""

from __future__ import annotations

from dataclasses import dataclass, field

from hasten.records import Ratio, Setting, Tried


@dataclass
class Found:
    """What is known so far; right at any moment, since a search may be interrupted."""

    setting: Setting = field(default_factory=dict)
    tried: list[Tried] = field(default_factory=list)
    data_free: Ratio | None = None
    sure: bool = True  # False: `setting` is likely to be faster, without a verdict
    plan_ratio: float = 1.0  # of `setting` against the baseline, as measured so far
    best: Setting = field(default_factory=dict)  # the best that is proven, adopted or not
    best_ratio: float = 1.0
