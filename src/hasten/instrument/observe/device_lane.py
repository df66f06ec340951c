"""When an accelerator is busy, on the clock of the main process.

torch's profiler gives begin and end of everything on the device in nanoseconds since 1970; the
recorder's clock is another one, and the difference is taken when the profiler has begun.
(The clocks were compared on the CPU; not yet seen on a GPU.)
"""

from __future__ import annotations

import time
from typing import Any

import torch

_NEAR = 2_000  # nanoseconds: kernels that follow each other so closely are one stretch


def offset() -> int:
    """Nanoseconds from the recorder's clock to that of the profiler."""
    return time.time_ns() - time.perf_counter_ns()


def busy(
    profiler: torch.profiler.profile, ahead: int, device: Any = None
) -> list[tuple[str, str, int, int]]:
    """Stretches in which the device worked, for `TracingRecorder.others`.

    Args:
        profiler: after its end.
        ahead: what `offset` gave.
        device: a torch.autograd.DeviceType; CUDA when None.
    """
    autograd: Any = torch.autograd  # whose stubs don't name DeviceType
    wanted = autograd.DeviceType.CUDA if device is None else device
    results: Any = profiler.profiler.kineto_results if profiler.profiler is not None else None
    events = results.events() if results is not None else ()
    ends = sorted(
        (e.start_ns() - ahead, e.start_ns() - ahead + e.duration_ns())
        for e in events
        if e.device_type() == wanted and e.duration_ns() > 0
    )
    joined: list[list[int]] = []
    for begin, end in ends:
        if joined and begin - joined[-1][1] <= _NEAR:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([begin, end])
    return [("device", "busy", begin, end) for begin, end in joined]
