"""Memory over batch size: a fixed part, a part of each sample, and what that leaves unexplained.

An iteration makes the same allocations in the same order whatever the batch; each takes a fixed
number of bytes, or a number for each sample. So what is alive after the k-th allocation is a line
over batch size, found from a few small sizes, and the peak of a larger batch is the highest of
all these lines. That also tells peaks that no small batch shows: where a small one is highest when
all gradients are there, a large one is highest at the end of the forward pass. Where sizes differ
in their allocations, a part of the iteration is described by its peak alone.

What the process takes beyond tensors is a line over batch size as well: interpreter and libraries,
and what allocators can't give back, which grows with what they are asked for (half as much again
as the tensors was seen on the CPU).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hasten.batching import MemoryUsed

MARGIN = 0.1  # of the limit is left free

Lines = NDArray[np.float64]


@dataclass(frozen=True)
class MemoryModel:
    """Bytes over batch size.

    Attributes:
        fixed: bytes at each moment of an iteration that the batch has no part in.
        per_sample: bytes at each moment that every sample adds.
        around: what the process takes beyond tensors whatever the batch: interpreter, libraries.
        around_per_sample: what every sample adds to that: fragments, scratch of libraries, workers.
        residual: largest relative error of the peak on the sizes that it was made from.
        sizes: those.
        aligned: whether all sizes made the same allocations.
    """

    fixed: Lines
    per_sample: Lines
    around: float
    around_per_sample: float
    residual: float
    sizes: tuple[int, ...]
    aligned: bool

    def tensors(self, size: int) -> float:
        """Most bytes of tensors that are alive at a time."""
        return float(np.max(self.fixed + self.per_sample * size))

    def total(self, size: int) -> float:
        """Bytes that the process takes."""
        return self.tensors(size) + self.beyond(size)

    def beyond(self, size: int) -> float:
        """Bytes that it takes beyond tensors."""
        return self.around + self.around_per_sample * size

    def line(self, size: int) -> tuple[float, float]:
        """Fixed part and bytes for each sample at the moment where this size peaks."""
        moment = int(np.argmax(self.fixed + self.per_sample * size))
        return float(self.fixed[moment]), float(self.per_sample[moment])

    def largest(self, limit: float) -> int | None:
        """The largest batch that fits with a margin; None: any does, 0: none does."""
        room = limit * (1 - MARGIN) - self.around
        each = self.per_sample + self.around_per_sample
        if np.max(self.fixed + each) > room:
            return 0
        grows = each > 0
        if not grows.any():
            return None
        return int(np.min((room - self.fixed[grows]) / each[grows]))


def fit(measured: Sequence[MemoryUsed]) -> MemoryModel:
    """The model that measurements of two sizes or more give.

    Raises:
        ValueError: there are fewer.
    """
    known = {used.batch_size: used for used in measured if used.batch_size is not None}
    if len(known) < 2:
        raise ValueError("two batch sizes at least")
    sizes = sorted(known)
    points = [known[size] for size in sizes]
    curves, aligned = _curves(points)
    per_sample, fixed = np.polyfit(np.asarray(sizes, dtype=float), curves, 1)
    seen = curves.max(axis=1)
    around, each = _around(sizes, np.asarray([float(taken(used)) for used in points]) - seen)
    model = MemoryModel(
        fixed=fixed,
        per_sample=np.where(per_sample < 1, 0.0, per_sample),  # less than a byte is rounding
        around=around,
        around_per_sample=each,
        residual=0.0,
        sizes=tuple(sizes),
        aligned=aligned,
    )
    errors = [
        abs(model.tensors(n) - peak) / peak for n, peak in zip(sizes, seen, strict=True) if peak
    ]
    return replace(model, residual=max(errors, default=0.0))


def _around(sizes: list[int], beyond: Lines) -> tuple[float, float]:
    """A line over batch size that what is taken beyond tensors stays below, on these sizes.

    It rises by one standard error more than the points do, since resident memory is noisy, and a
    limit that is exceeded is worse than a batch that could have been larger.
    """
    numbers = np.asarray(sizes, dtype=float)
    slope, start = np.polyfit(numbers, beyond, 1)
    left = float(np.sum((beyond - start - slope * numbers) ** 2)) / max(1, len(sizes) - 2)
    error = float(np.sqrt(left / np.sum((numbers - numbers.mean()) ** 2)))
    each = float(max(0, round(float(slope) + error)))  # less than a byte is rounding
    return float(np.max(beyond - each * numbers)), each


def _curves(points: list[MemoryUsed]) -> tuple[Lines, bool]:
    """Bytes at the moments that all sizes share, a row for each size."""
    if any(used.trouble or not used.curves for used in points):
        return np.asarray([[float(used.resident)] for used in points]), False
    if any(used.kinds != points[0].kinds for used in points):
        return np.asarray([[float(used.peak)] for used in points]), False
    columns: list[Lines] = []
    aligned = True
    for index, kind in enumerate(points[0].kinds):
        parts = [used.curves[index] for used in points]
        alike = len({used.counts[index] for used in points}) == 1
        if not alike or len({len(part) for part in parts}) > 1:
            parts = [(max(part),) for part in parts]
            aligned = aligned and kind == "iteration"
        columns.append(np.asarray(parts, dtype=float))
    return np.concatenate(columns, axis=1), aligned


def taken(used: MemoryUsed) -> int:
    """Bytes that count against the limit: on the CPU also what workers have of their own."""
    if used.device == "cpu":
        return used.resident + used.workers
    return used.peak + used.reserved
