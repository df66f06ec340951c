"""What parent and child say to each other about memory, batch sizes and gradients: plain data.

Sizes are in bytes, batch sizes in samples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class MeasureMemory:
    """Run valid iterations under `setting` and tell what they took of time and memory.

    `iterations` pass without any gauge, and `gauged` more with one.
    """

    iterations: int
    gauged: int = 3
    setting: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MemoryUsed:
    """The answer to MeasureMemory; the highest of what its iterations showed.

    Attributes:
        batch_size: of the training loader as it is now; None: there is none.
        device: whose allocator was asked, "cpu" or an accelerator's type.
        peak: most bytes of tensors alive at a time.
        kinds: the parts of the iteration with that peak, in order: "iteration" (its beginning),
            "forward", "backward", "after" (a backward pass), "step".
        counts: allocations and releases in each part.
        curves: bytes alive after each of them, or the highest of a few in a row; where the number
            of allocations depends on the batch (data), only the peak.
        resident: physical memory of the process.
        workers: physical memory that only its child processes have.
        reserved: bytes that the device's allocator holds beyond its tensors.
        room: bytes that the accelerator could give to this process in all; 0 on the CPU.
        seconds: of an iteration, mean without any gauge.
        error: standard error of that mean, in seconds.
        no_effect: units of the setting that did nothing, and why.
        trouble: why tensors could not be counted; empty: they were.
    """

    batch_size: int | None
    device: str
    peak: int
    resident: int
    kinds: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    curves: tuple[tuple[int, ...], ...] = ()
    workers: int = 0
    reserved: int = 0
    room: int = 0
    seconds: float = 0.0
    error: float = 0.0
    no_effect: dict[str, str] = field(default_factory=dict)
    trouble: str = ""


@dataclass(frozen=True)
class SampleGradients:
    """Take the gradients of `iterations` steps at the weights as they are now.

    Only for children that are thrown away: the weights are put back after each step.
    """

    iterations: int
    seconds: float
    groups: int = 16


@dataclass(frozen=True)
class GradientsSampled:
    """The answer to SampleGradients: all that a gradient noise scale is computed from.

    Steps are dealt out to groups in turns. `sums[i][j]` is the inner product of the summed
    gradients of groups i and j; `squares[i]` sums the squared norms in group i.
    """

    batch_size: int | None  # samples in one step
    counts: tuple[int, ...]
    squares: tuple[float, ...]
    sums: tuple[tuple[float, ...], ...]
    trouble: str = ""  # why there are none


#: All of them.
Batching = MeasureMemory | MemoryUsed | SampleGradients | GradientsSampled
