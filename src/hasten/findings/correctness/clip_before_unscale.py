"""Gradients are clipped while they are still multiplied by the GradScaler's scale.

What it is
    `clip_grad_norm_` (or `clip_grad_value_`) between `scaler.scale(loss).backward()` and
    `scaler.step(optimizer)`, without `scaler.unscale_(optimizer)` before it.

Why it costs
    The norm that is compared with the limit is thousands of times too large, so that every
    gradient is clipped; after `step` has divided by the scale, hardly anything is left of the
    update. Training is slower by orders of magnitude, without any message.

How it is measured
    At the call, a scaler has scaled a loss since its last update, it hasn't unscaled for the
    optimizer that owns these parameters, and its scale isn't 1. A limit that was multiplied by
    the scale is not that.

What to do
    `scaler.unscale_(optimizer)` right before clipping.

Source
    PyTorch, "Automatic Mixed Precision examples": gradient clipping; examples#1196.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, Kind
from hasten.findings.correctness._places import told

_LEAST = 3  # calls that were seen
_WITH_SCALE = 1e-3  # of the scale: a limit above that was multiplied by it


class ClipBeforeUnscale(Finding):
    """Clipping at the wrong size."""

    name: ClassVar[str] = "clip-before-unscale"
    subject: ClassVar[str] = "correctness"
    kind: ClassVar[Kind] = Kind.WRONG

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Calls on gradients that were still scaled."""
        for clip in diagnosis.observed.facts.get("scaling", {}).get("clips", ()):
            scale, limit, norm = clip["scale"], clip["limit"], clip["norm"]
            if clip["count"] < _LEAST or limit >= max(100.0, _WITH_SCALE * scale):
                continue
            evidence = [
                f"{clip['count']} calls on gradients that were still multiplied by {scale:g}"
            ]
            if norm is not None and norm > limit:
                evidence.append(
                    f"the last time, a norm of {norm:.3g} was cut to {limit:g}; the true norm was "
                    f"{norm / scale:.3g}, and the update shrank to "
                    f"{limit / scale / min(limit, norm / scale):.1e} of what it should be"
                )
            yield Found(
                summary="gradients are clipped before they are unscaled: hardly anything of the "
                "update is left",
                todo="call scaler.unscale_(optimizer) before clipping",
                evidence=tuple(evidence),
                place=told(clip["place"]),
            )
