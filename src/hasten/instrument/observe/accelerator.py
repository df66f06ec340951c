"""Measures an accelerator under the script: busy time, copies, and the model on it.

Only where there is one; nothing is estimated without. (Not yet seen on a GPU.)
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Generator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from hasten.instrument.observe import device_lane
from hasten.instrument.observe.arithmetic import Captured, run_once, timed
from hasten.instrument.observe.devices import accelerator
from hasten.instrument.recorder import Iteration
from hasten.instrument.seams.loader_random import preserved
from hasten.instrument.seams.root import Root
from hasten.instrument.tracing import TracingRecorder

_BYTES = 32 * 2**20
_TRIES = 5


def facts(
    device: str, captured: list[tuple[Root, Captured]], recorder: TracingRecorder
) -> Generator[None, Iteration, dict[str, Any]]:
    """All of it, for `Examined.facts`; empty without an accelerator.

    Args:
        device: type of device on which the model is.
        captured: roots with the arguments of a call.
        recorder: of this process; it gets the lane of the device in the iteration that is
            profiled, the last one of its traces.
    """
    present = accelerator()
    if present is None:
        return {}
    found: dict[str, Any] = {"copy_rates": copy_rates(present)}
    if device == "cuda":
        found["device_busy"] = yield from _busy(recorder)
    elif device == "cpu" and captured:
        found["on_accelerator"] = _moved(*captured[0], present)
    return found


def copy_rates(device: Any) -> dict[str, float]:
    """Bytes a second to the device, from pageable and from pinned memory."""
    pageable = torch.empty(_BYTES, dtype=torch.uint8)
    pinned = pageable.pin_memory()
    kind = torch.device(device).type
    return {"pageable": _rate(pageable, device, kind), "pinned": _rate(pinned, device, kind)}


def _rate(source: torch.Tensor, device: Any, kind: str) -> float:
    times = [timed(lambda: source.to(device), kind) for _ in range(_TRIES)]
    return _BYTES / statistics.median(times)


def _busy(recorder: TracingRecorder) -> Generator[None, Iteration, float | None]:
    """Seconds of kernels in one plain iteration."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(_TRIES):
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            ahead = device_lane.offset()
            iteration = yield
            torch.cuda.synchronize()
        if not iteration.void:
            recorder.others = device_lane.busy(profiler, ahead)
            return 1e-6 * float(sum(e.self_device_time_total for e in profiler.key_averages()))
    return None


def _moved(root: Root, captured: Captured, device: Any) -> tuple[float, float] | None:
    """Seconds of forward and backward here, and of a copy on the accelerator."""
    if captured.args is None:
        return None
    try:
        here, there = copy.deepcopy(root.module), copy.deepcopy(root.module).to(device)
        moved = pytree.tree_map_only(
            torch.Tensor, lambda t: t.to(device), (captured.args, captured.kwargs)
        )
        kind = torch.device(device).type
        given = captured.args, captured.kwargs
        with preserved():
            own = [timed(lambda: run_once(here, *given), "cpu") for _ in range(2)]
            other = [timed(lambda: run_once(there, *moved), kind) for _ in range(_TRIES)]
    except Exception:  # code of the script, on a device that it did not expect
        return None
    return min(own), statistics.median(other[1:])
