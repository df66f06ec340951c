"""Much of each batch is padding, which batches of alike lengths would not have.

What it is
    Rows of different lengths are filled up to the longest one of their batch, or to a fixed
    length.

Why it costs
    The model computes padding like everything else, and throws the result away.

How it is measured
    Rows are measured without what the model itself calls padding: the `padding_idx` of an
    embedding, or zeros of an `attention_mask`. The rows of up to 64 batches are then put into
    batches by length, as a batch sampler over buckets would. A copy of the model is run forward
    and backward on its inputs cut shorter, in turns with the whole, which says what shorter
    batches save. What the loss outside of the model would save isn't in it.

What to do
    Pad to the longest row of the batch, and draw batches from rows of alike lengths. Batches are
    made of other rows then, so the training isn't the same to the bit.

Source
    PyTorch performance tuning guide, on inputs of variable lengths; Hugging Face Transformers,
    `group_by_length` and `DataCollatorWithPadding`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar

from hasten.findings._instead import wall
from hasten.findings.base import Diagnosis, Finding, Found, percent, place_from
from hasten.statistics.turns import saved

_SHARE = 0.1  # of the positions, that could be left out
_LEAST = 0.03  # of an iteration
_BATCHES = 8  # that were seen


class PaddingWaste(Finding):
    """Batches that are longer than their rows."""

    name: ClassVar[str] = "padding-waste"
    subject: ClassVar[str] = "data"

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Batches by length would surely be faster."""
        facts = diagnosis.observed.facts.get("padding", {})
        batches = facts.get("batches", ())
        if len(batches) < _BATCHES or not diagnosis.examined.facts.get("padding"):
            return
        positions = sum(batch["length"] * len(batch["rows"]) for batch in batches)
        real = sum(sum(batch["rows"]) for batch in batches)
        fraction = by_length(batches) / max(1, positions)
        cost = _gain(diagnosis, fraction, statistics.fmean(b["length"] for b in batches))
        if 1 - fraction < _SHARE or cost < _LEAST * diagnosis.iteration:
            return
        loader = diagnosis.examined.loader
        made = diagnosis.observed.facts.get("loaders", {}).get("made")
        lengths = [length for batch in batches for length in batch["rows"]]
        yield Found(
            summary=f"{percent(1 - real / positions)} of what the model is given is padding",
            todo="pad to the longest row of the batch, and put rows of alike lengths into a batch",
            evidence=(
                f"rows of {min(lengths)} to {max(lengths)} in batches of length "
                f"{statistics.fmean(b['length'] for b in batches):.0f} ({facts['by']})",
                f"in batches by length {percent(1 - fraction)} of the positions were not there",
            ),
            place=(loader.collate_place if loader is not None else None) or place_from(made),
            cost=cost,
        )


def by_length(batches: Sequence[dict[str, Any]]) -> int:
    """Positions of batches of the same sizes with the same rows, sorted by length."""
    rows = sorted(row for batch in batches for row in batch["rows"])
    positions = start = 0
    for size in sorted(len(batch["rows"]) for batch in batches):
        own = rows[start : start + size]
        positions += max(own, default=0) * size
        start += size
    return positions


def _gain(diagnosis: Diagnosis, fraction: float, length: float) -> float:
    """Seconds an iteration that inputs of a fraction of their length surely save."""
    entries = sorted(diagnosis.examined.facts["padding"], key=lambda e: -float(e["fraction"]))
    points = [(1.0, 0.0, 0.0)]  # fraction, what it saves, and at least
    for entry in entries:
        found = saved(entry["as_is"], entry["instead"])
        points.append((float(entry["fraction"]), found.median, found.low))
    fraction = max(fraction, points[-1][0])
    for (longer, less, _), (shorter, more, low) in pairwise(points):
        if shorter <= fraction:
            if low <= 0:
                return 0.0
            part = (longer - fraction) / (longer - shorter)
            gain = less + part * (more - less)
            return gain * wall(diagnosis) * length / float(entries[0]["length"])
    return 0.0
