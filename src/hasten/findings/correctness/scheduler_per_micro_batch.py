"""Gradients are accumulated over several batches, and the scheduler steps at each of them.

What it is
    The optimizer steps once in k batches, the scheduler in every batch: of the learning rates
    that it sets, one in k is used.

Why it costs
    A schedule that is counted in updates is over after 1/k of the training: the rest runs at the
    last, usually tiny, learning rate, or a cyclic one goes round k times.

How it is measured
    Between two steps of the optimizer there were as many steps of the scheduler as backward
    passes, k, the same again and again. A schedule whose numbers show that it is meant in batches
    (a multiple of the batches of an epoch, as in `epochs * len(loader)`) is not that.

What to do
    Call `scheduler.step()` only when the optimizer has stepped, or build the schedule with the
    number of batches.

Source
    Transformers, Trainer: steps of the schedule are updates, not batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, Kind
from hasten.findings.correctness._places import told

_LEAST = 4  # windows that were seen


class SchedulerPerMicroBatch(Finding):
    """A schedule that runs several times too fast."""

    name: ClassVar[str] = "scheduler-per-micro-batch"
    subject: ClassVar[str] = "correctness"
    kind: ClassVar[Kind] = Kind.WRONG

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Several scheduler steps for each optimizer step, one for each backward pass."""
        facts = diagnosis.observed.facts.get("schedules", {})
        for one in facts.get("schedulers", ()):
            batches = _accumulated(one)
            if batches is None or _meant_in_batches(one):
                continue
            yield Found(
                summary=f"{one['name']} steps at each batch, the optimizer at every {batches}th: "
                f"the schedule is over {batches} times too early",
                todo="step the scheduler only after optimizer.step()",
                evidence=(
                    f"{batches} scheduler steps and {batches} backward passes between two steps "
                    f"of the optimizer, {len(one['windows'])} times in turn",
                    *_horizon(one),
                ),
                place=told(one["place"]),
            )


def _accumulated(one: dict[str, Any]) -> int | None:
    """Batches of an optimizer step, when the scheduler steps at each."""
    windows = one["windows"]
    common = max(windows, key=windows.count, default=None)
    # The last window of an epoch may be shorter.
    if common is None or len(windows) < _LEAST or windows.count(common) < 0.8 * len(windows):
        return None
    passes, steps = common
    return passes if passes == steps > 1 else None


def _meant_in_batches(one: dict[str, Any]) -> bool:
    epoch = one["epoch"]
    return epoch is None or any(n >= epoch and n % epoch == 0 for n in one["numbers"])


def _horizon(one: dict[str, Any]) -> list[str]:
    longest = max(one["numbers"], default=0)
    return (
        [f"the schedule's longest number is {longest}, an epoch has {one['epoch']} batches"]
        if (longest > one["epoch"])
        else []
    )
