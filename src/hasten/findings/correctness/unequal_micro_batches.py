"""Gradients are accumulated over mean losses that hold different numbers of tokens.

What it is
    Each batch's loss is a mean over its own tokens (or its targets that aren't ignored), and all
    batches of a window count alike, though they hold different numbers of them.

Why it costs
    Tokens of batches with few of them weigh more than others: the update is not that of the whole
    batch, and depends on how it was cut into parts.

How it is measured
    For each backward pass of a cross entropy with `reduction="mean"`: the number (or weight) of
    targets that its mean went over, and what the loss was multiplied by after it. What a target
    weighs in the update is the one over the other; the largest is compared with the smallest in
    each window. A loss that is multiplied by its share of the tokens is not that.

What to do
    Sum the losses (`reduction="sum"`) and divide by the number of targets in the whole window.

Source
    Unsloth, "Bugs in LLM Training: Gradient Accumulation Fix" (2024); transformers#34191.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any, ClassVar

from hasten.findings._windows import LEAST, accumulating
from hasten.findings.base import Diagnosis, Finding, Found, Kind

_APART = 1.25  # the largest weight of a target over the smallest


class UnequalMicroBatches(Finding):
    """Tokens that weigh more than others."""

    name: ClassVar[str] = "unequal-micro-batches"
    subject: ClassVar[str] = "correctness"
    kind: ClassVar[Kind] = Kind.WRONG

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Windows whose batches weigh their targets differently."""
        for optimizer, size in accumulating(diagnosis):
            # The last batch of an epoch may be smaller, so only windows inside of one.
            whole = [w for w in optimizer["windows"] if w["fresh"] is None and _known(w, size)]
            apart = [_spread(w["losses"]) for w in whole]
            if len(apart) < LEAST or statistics.median(apart) < _APART:
                continue
            counts = [count for w in whole for _, count in w["losses"]]
            events = diagnosis.observed.all("backward")
            yield Found(
                summary="batches of one update hold different numbers of targets, and count alike: "
                f"some targets weigh {statistics.median(apart):.1f} times as much as others",
                todo="sum the losses, and divide by the number of targets in all batches of the "
                "update",
                evidence=(
                    f"{len(apart)} updates of {size} batches each, with mean losses over "
                    f"{min(counts):.0f} to {max(counts):.0f} targets",
                ),
                place=events[0].place if events else None,
            )


def _known(window: dict[str, Any], size: int) -> bool:
    losses = window["losses"]
    return window["batches"] == size and bool(losses) and all(f > 0 and n > 0 for f, n in losses)


def _spread(losses: list[list[float]]) -> float:
    weights = [factor / count for factor, count in losses]
    return max(weights) / min(weights)
