"""Bytes of tensors that are alive, allocation by allocation, over whole iterations.

torch's profiler tells of every allocation from its start on, on accelerators as well as on the CPU.
What was there before is counted at each iteration's border: by the accelerator's allocator, on the
CPU by looking for all tensors. A tensor that was there before the profiler started and is freed
later is not seen to go, so the first iteration is left out.
"""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch

#: The part at the beginning of an iteration.
BORDER = "iteration"
_MARK = "hasten mark "
_KIBI = 1024


@dataclass
class Part:
    """What happened between two marks.

    Attributes:
        kind: what the mark said.
        curve: bytes alive after the mark and after each allocation or release.
    """

    kind: str
    curve: list[int] = field(default_factory=list)

    @property
    def peak(self) -> int:
        """Most bytes alive at a time."""
        return max(self.curve)


class Gauge:
    """Follows the memory of tensors from `start` to `stop`.

    Args:
        device: type of the device whose memory is meant.
        parameters: whose gradients have to be looked for.
    """

    def __init__(self, device: str, parameters: Iterable[torch.Tensor]) -> None:
        self._device, self._parameters = device, list(parameters)
        self._profiler: Any = None
        self._there: list[int] = []

    def start(self) -> None:
        """Begin to count.

        Raises:
            RuntimeError: a profiler of the script's is running.
        """
        from torch.profiler import ProfilerActivity, profile

        self._profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profiler.__enter__()

    def border(self) -> None:
        """An iteration begins."""
        self._there.append(self._now())
        self.mark(BORDER)

    def mark(self, kind: str) -> None:
        """Another part of the iteration begins."""
        with torch.profiler.record_function(_MARK + kind):
            pass

    def stop(self) -> list[list[Part]]:
        """End; the parts of each iteration but the first."""
        self._profiler.__exit__(None, None, None)
        moments = [
            (event.start_ns(), event)
            for event in self._profiler.profiler.kineto_results.events()
            if event.name().startswith(_MARK) or self._counts(event)
        ]
        moments.sort(key=lambda pair: pair[0])
        return iterations([_change(event) for _, event in moments], self._there)[1:]

    def _counts(self, event: Any) -> bool:
        kind = str(event.device_type()).rpartition(".")[2].lower()
        return event.name() == "[memory]" and kind == self._device

    def _now(self) -> int:
        if self._device == "cpu":
            return alive(self._parameters)
        module: Any = getattr(torch, self._device)
        return int(module.memory_allocated())


def _change(event: Any) -> int | str:
    """Bytes that were taken, or given back; at a mark, what it says."""
    name = event.name()
    return name.removeprefix(_MARK) if name.startswith(_MARK) else int(event.nbytes())


def iterations(changes: list[int | str], there: list[int]) -> list[list[Part]]:
    """The parts of each iteration.

    Args:
        changes: bytes taken (or given back, below zero) in order, and names of parts where one
            begins.
        there: bytes alive at the beginning of each iteration.
    """
    found: list[list[Part]] = []
    now = 0
    for change in changes:
        if isinstance(change, str):
            if change == BORDER:
                now = there[len(found)]
                found.append([])
            if found:
                found[-1].append(Part(change, [now]))
            continue
        now += change
        if found:
            found[-1][-1].curve.append(now)
    return found


def alive(parameters: Iterable[torch.Tensor]) -> int:
    """Bytes of all tensors of this process that lie in its own memory, each storage once."""
    sizes: dict[int, int] = {}
    held = [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]
    held += [p.grad for p in parameters if p.grad is not None]
    for tensor in [part for whole in held for part in _parts_of(whole)]:
        with suppress(RuntimeError, NotImplementedError):  # fake, or a subclass without any
            if tensor.device.type == "cpu" and tensor.layout == torch.strided:
                storage = tensor.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def _parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors with storage that a tensor consists of: of a sparse one, indices and values."""
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    return (tensor,)


# --- physical memory ------------------------------------------------------------------------------


def forget_peak() -> bool:
    """Let the peak of physical memory begin anew; whether this system can."""
    try:
        file = os.open("/proc/self/clear_refs", os.O_WRONLY)
    except OSError:
        return False
    try:
        os.write(file, b"5")
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def resident_peak() -> int:
    """Most physical memory of this process since `forget_peak`, else since its start, in bytes."""
    with suppress(OSError, ValueError), open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * _KIBI
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIBI


def workers_memory() -> int:
    """Physical memory that only the child processes have, in bytes."""
    total = 0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            total += int(child.memory_full_info().uss)
    return total
