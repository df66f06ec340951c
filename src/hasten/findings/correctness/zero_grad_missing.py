"""Gradients are never cleared, so each step uses the sum of all gradients so far.

What it is
    torch adds to `.grad` in each backward pass. Without `optimizer.zero_grad()` between two
    steps, gradients of old weights and old batches stay in the sum for ever.

Why it costs
    The steps grow and point to where they pointed long ago. Often the loss still falls for a
    while, so that it looks like a learning rate that is hard to find.

How it is measured
    A gradient that is bit-equal to the one that the last step used when the next backward pass
    begins, and is changed by that pass, was added to. That must be so at nearly every step of
    the same optimizer. Accumulation over several batches, two losses, and clearing by hand or
    at the end of the loop are not that.

What to do
    Call `optimizer.zero_grad()` once for each step, before the backward pass or after the step.

Source
    PyTorch, "Zeroing out gradients" recipe; pytorch#47175.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, Kind
from hasten.findings.correctness._places import last_before, several

_LEAST = 4  # steps that were seen


class ZeroGradMissing(Finding):
    """Steps with the gradients of all steps before."""

    name: ClassVar[str] = "zero-grad-missing"
    subject: ClassVar[str] = "correctness"
    kind: ClassVar[Kind] = Kind.WRONG

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Gradients that nobody cleared between steps."""
        facts = diagnosis.observed.facts.get("gradients", {})
        for optimizer in facts.get("optimizers", ()):
            if optimizer["carried"] and optimizer["steps"] >= _LEAST:
                yield self._found(diagnosis, optimizer)

    def _found(self, diagnosis: Diagnosis, optimizer: dict[str, Any]) -> Found:
        backward = last_before(diagnosis.observed, "backward", "step", optimizer["subject"])
        carried, looked = optimizer["carried"], optimizer["looked"]
        name, norms = optimizer["name"], optimizer["norms"]
        some = "" if len(carried) == looked else f" of {several(carried)}"
        shown = [norms[0], norms[len(norms) // 2], norms[-1]]
        return Found(
            summary=f"gradients{some} are never cleared between steps of {name}: each backward "
            "pass adds to them",
            todo="call optimizer.zero_grad() once for each step, before loss.backward()",
            evidence=(
                f"{len(carried)} of {looked} gradients that were looked at still held those of "
                f"earlier steps at each of {optimizer['steps'] - 1} steps",
                "their norm over these steps: " + ", ".join(f"{norm:.3g}" for norm in shown),
            ),
            place=backward.place if backward is not None else None,
        )
