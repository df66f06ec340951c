"""The scheduler steps before the optimizer, so that the first learning rate is never used.

What it is
    `scheduler.step()` comes first in each epoch or iteration. Until torch 1.1 that was right;
    since then a scheduler sets the first learning rate when it is made.

Why it costs
    The whole schedule is one step early. With few epochs, or with warm-up, that is a visible
    part of it.

How it is measured
    The scheduler stepped before any optimizer had stepped, and the very same line, called from
    the same lines, stepped it again later, about as often as the optimizer or less. Steps that
    bring a schedule to where an earlier run ended come from a line of their own; a first step
    that a GradScaler skipped counts as a step.

What to do
    Call `scheduler.step()` after `optimizer.step()`.

Source
    torch.optim, "How to adjust learning rate"; pytorch#20124.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, Kind
from hasten.findings.correctness._places import told


class SchedulerBeforeOptimizer(Finding):
    """A schedule that is one step early."""

    name: ClassVar[str] = "scheduler-before-optimizer"
    subject: ClassVar[str] = "correctness"
    kind: ClassVar[Kind] = Kind.WRONG

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """One step of the scheduler before all others, by the line that makes them all."""
        facts = diagnosis.observed.facts.get("schedules", {})
        for one in facts.get("schedulers", ()):
            often = one["steps"] > 1.2 * one["optimizer_steps"]
            if one["before"] != 1 or one["after"] < 1 or often:
                continue
            evidence = [
                f"{one['name']} stepped once before any optimizer did, and "
                f"{one['after']} times since, from the same line"
            ]
            if one["rates"] is not None:
                first, used = one["rates"]
                evidence.append(
                    f"the first learning rate is {first:.4g}; the first step was made with "
                    f"{used:.4g}"
                )
            yield Found(
                summary=f"{one['name']} steps before the optimizer: the schedule is one step early",
                todo="move scheduler.step() behind optimizer.step() (behind the epoch's loop, if "
                "it counts epochs)",
                evidence=tuple(evidence),
                place=told(one["place"]),
            )
