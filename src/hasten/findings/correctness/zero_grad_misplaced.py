"""Gradients are cleared after the backward pass and before the step that should use them.

What it is
    `zero_grad()` stands between `backward()` and `step()`, so that steps find nothing; or, where
    gradients are accumulated over several batches, it is called at each batch, so that a step
    uses the last batch only.

Why it costs
    In the first form nothing is learnt (weight decay and momentum may still move parameters); in
    the second the work for all batches but one of each step is thrown away.

How it is measured
    Gradients were there after the backward pass, and all of them were zero or gone when the
    optimizer stepped, at every step; or, between two steps, the gradients of all batches but the
    last were cleared unused, again and again and with the same number of batches. Clearing what
    another optimizer's loss left behind, and passes that only make adversarial inputs, are not
    that.

What to do
    Clear once for each step: before the first backward pass, or after the step.

Source
    PyTorch, "Zeroing out gradients" recipe; accelerate#1299.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from hasten.diagnosis import Observed, Place
from hasten.findings.base import Diagnosis, Finding, Found, Kind
from hasten.findings.correctness._places import last_before

_LEAST = 4  # steps that were seen


class ZeroGradMisplaced(Finding):
    """Gradients that are thrown away unused."""

    name: ClassVar[str] = "zero-grad-misplaced"
    subject: ClassVar[str] = "correctness"
    kind: ClassVar[Kind] = Kind.WRONG

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Steps without gradients, or with those of one batch of several."""
        facts = diagnosis.observed.facts.get("gradients", {})
        for optimizer in facts.get("optimizers", ()):
            if optimizer["steps"] < _LEAST:
                continue
            # The first step of an optimizer comes before anything was looked at.
            if optimizer["emptied"] >= optimizer["steps"] - 1:
                yield self._unused(diagnosis.observed, optimizer)
            elif not facts.get("scaler") and (batches := _thrown_away(optimizer["windows"][1:])):
                yield self._last_only(diagnosis.observed, optimizer, batches)

    def _unused(self, observed: Observed, optimizer: dict[str, Any]) -> Found:
        return Found(
            summary=f"gradients are cleared before {optimizer['name']} steps: no step uses them",
            todo="move zero_grad() before the backward pass, or after the step",
            evidence=(
                f"after the backward pass there were gradients, and at {optimizer['emptied']} "
                f"of {optimizer['steps']} steps all of them were zero or gone",
            ),
            place=_cleared_at(observed, optimizer["subject"]),
        )

    def _last_only(self, observed: Observed, optimizer: dict[str, Any], batches: int) -> Found:
        windows = len(optimizer["windows"]) - 1
        return Found(
            summary=f"gradients are cleared at each batch, but {optimizer['name']} steps at every "
            f"{batches}th: it uses the last batch only",
            todo="clear gradients once for each step, and not at each batch",
            evidence=(
                f"in {windows} steps of {windows}, the gradients of {batches - 1} of {batches} "
                "batches were thrown away unused",
            ),
            place=_cleared_at(observed, optimizer["subject"]),
        )


def _thrown_away(windows: list[list[int]]) -> int | None:
    """Batches of a step, when all but the last were in vain each time."""
    sizes = {batches for batches, _ in windows}
    if len(windows) < _LEAST - 1 or len(sizes) != 1:
        return None
    (batches,) = sizes
    in_vain = all(lost == batches - 1 for _, lost in windows)
    return batches if batches > 1 and in_vain else None


def _cleared_at(observed: Observed, subject: str) -> Place | None:
    event = last_before(observed, "zero_grad", "step", subject)
    if event is None:
        event = last_before(observed, "step", "step", subject)
    return event.place if event is not None else None
