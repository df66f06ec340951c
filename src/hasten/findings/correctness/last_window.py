"""Gradients are accumulated, and the last batches of an epoch don't fill a window.

What it is
    An optimizer steps at every k-th batch, counted anew in each epoch, and the number of batches
    is no multiple of k. What is left over at the end of an epoch is cleared unused, is added to
    the first update of the next epoch, or makes an update of its own that is divided by k all the
    same.

Why it costs
    Cleared, the work is lost, and without shuffling these samples never count. Carried over, one
    update of each epoch is too large, with gradients of older weights in it. Divided by k, it is
    too small.

How it is measured
    Between two steps of the optimizer: the batches that gave its parameters gradients, where the
    epoch's border lies among them, whether gradients were still there after it, and by what the
    loss was divided. A last window with more than half of k batches is not worth a word when it is
    only too small, and windows that go on over the border are what they should be.

What to do
    Step at the last batch of an epoch as well, and divide by the number of batches that the window
    really has; or count batches over epochs.

Source
    Transformers, Trainer: the last window of an epoch is divided by its own length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from hasten.findings._windows import accumulating
from hasten.findings.base import Diagnosis, Finding, Found, Kind
from hasten.findings.correctness._places import last_before

_SMALL = 0.5  # of a whole window
_NEAR = 0.01


class LastWindow(Finding):
    """What is left over at the end of an epoch."""

    name: ClassVar[str] = "last-window"
    subject: ClassVar[str] = "correctness"
    kind: ClassVar[Kind] = Kind.WRONG

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Windows that an epoch's border cuts."""
        for optimizer, size in accumulating(diagnosis):
            windows = optimizer["windows"]
            over = [w for w in windows if w["fresh"] == size and w["batches"] > size]
            short = [w for w in windows if _too_small(w, size)]
            if over:
                summary, evidence = _over(optimizer["name"], over, size)
            elif short:
                summary, evidence = _short(optimizer["name"], short, size)
            else:
                continue
            event = last_before(diagnosis.observed, "step", "step", optimizer["subject"])
            yield Found(
                summary=summary,
                todo="step at the last batch of an epoch as well, with losses divided by the "
                "batches that the window really has",
                evidence=(evidence,),
                place=event.place if event is not None else None,
            )


def _over(name: str, over: list[dict[str, Any]], size: int) -> tuple[str, str]:
    left = over[-1]["batches"] - size
    kept = sum(w["kept"] for w in over)
    batches, verb = ("batch", "is") if left == 1 else (f"{left} batches", "are")
    if 2 * kept > len(over):
        summary = f"the last {batches} of an epoch {verb} added to the first update of the next"
        return summary, (
            f"{name} steps after {size} batches, and after {size + left} where an epoch begins "
            f"between them: {kept} times, gradients of the old epoch were still there"
        )
    return f"the last {batches} of an epoch {verb} never used", (
        f"{name} steps after {size} batches; {len(over)} times, gradients of {left} more were "
        "cleared where an epoch began"
    )


def _too_small(window: dict[str, Any], size: int) -> bool:
    """A short window whose losses were divided as if it were whole."""
    losses = window["losses"]
    if window["fresh"] is not None or not 0 < window["batches"] <= _SMALL * size or not losses:
        return False
    return all(abs(factor * size - 1) < _NEAR for factor, _ in losses)


def _short(name: str, short: list[dict[str, Any]], size: int) -> tuple[str, str]:
    batches = short[-1]["batches"]
    return (
        f"the last update of an epoch holds {batches} of {size} batches, and is divided by {size} "
        "all the same",
        f"{len(short)} times, {name} stepped after {batches} batches whose losses were divided by "
        f"{size}: the update is {batches / size:.0%} of what it should be",
    )
