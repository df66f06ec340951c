"""Examines what observing can't show: memory, arithmetic and the loader by itself."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Generator

import psutil
import torch

from hasten.diagnosis import Examined
from hasten.instrument.observe.conductor import ObservingConductor
from hasten.instrument.recorder import Iteration


def examine(conductor: ObservingConductor, seconds: float) -> Generator[None, Iteration, Examined]:
    """Everything that is measured at a border, or in single iterations, after the blocks.

    Args:
        conductor: of this process.
        seconds: that may be spent, about.
    """
    yield
    return Examined(
        memory_first=conductor.memory_first,
        memory_last=psutil.Process(os.getpid()).memory_info().rss,
        peak_memory=_peak(),
        device_peak_memory=_device_peak(),
    )


def _peak() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _device_peak() -> int | None:
    return int(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else None
