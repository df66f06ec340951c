"""Examines what observing can't show: memory, arithmetic and the loader by itself."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Generator
from typing import Any

import psutil
import torch
from torch.utils import _pytree as pytree

from hasten.diagnosis import Examined, LoaderTimes
from hasten.instrument.observe import accelerator
from hasten.instrument.observe.alternatives import alternatives
from hasten.instrument.observe.arithmetic import Captured, count, peaks, single_precision
from hasten.instrument.observe.conductor import ObservingConductor
from hasten.instrument.observe.loader_times import loader_times
from hasten.instrument.observe.padding import shorter
from hasten.instrument.recorder import Iteration
from hasten.instrument.seams.loader import OwnedLoader
from hasten.instrument.seams.root import Root
from hasten.records import PHASES

_DOUBLE = torch.float64
_IDS = (torch.int64, torch.int32)
_TRIES = 3  # iterations in which a call may be captured or counted


def examine(
    conductor: ObservingConductor, seconds: float, arithmetic: bool
) -> Generator[None, Iteration, Examined]:
    """Everything that is measured at a border, or in single iterations, after the blocks.

    Args:
        conductor: of this process.
        seconds: that may be spent, about.
        arithmetic: also count operations, which a script may not bear.
    """
    seams = conductor.seams
    assert seams is not None
    memory = psutil.Process(os.getpid()).memory_info().rss
    peak, device_peak = _peak(), _device_peak()
    loader: LoaderTimes | None = None
    if isinstance(seams.loader, OwnedLoader):
        loader = loader_times(seams.loader, seconds / 2)
    flops, single = 0, None
    facts: dict[str, Any] = {}
    if arithmetic:
        captured = yield from _capture(seams.roots)
        flops = sum(count(root, seen) for root, seen in captured)
        single = _single(captured)
        facts = yield from accelerator.facts(seams.device, captured, conductor.recorder)
        facts |= alternatives(captured, seconds / 4)
        facts["padding"] = [p for root, seen in captured for p in shorter(root, seen, seconds / 4)]
        facts["tokens"] = sum(tokens(root, seen) for root, seen in captured)
    # Only the iteration that was profiled has a lane of the device.
    profiled = (
        conductor.recorder.last((*PHASES, "copy", "other")) if facts.get("device_busy") else None
    )
    dtypes = {"float32", "bfloat16", *_dtypes(conductor)}
    return Examined(
        loader=loader,
        flops=flops,
        peaks=peaks(seams.device, dtypes),
        memory_first=conductor.memory_first,
        memory_last=memory,
        peak_memory=peak,
        device_peak_memory=device_peak,
        single_precision=single,
        facts=facts,
        timeline=profiled,
    )


def _dtypes(conductor: ObservingConductor) -> set[str]:
    assert conductor.seams is not None
    tensors = (p for root in conductor.seams.roots for p in root.module.parameters())
    return {str(t.dtype).removeprefix("torch.") for t in tensors if t.dtype.is_floating_point}


def _capture(
    roots: list[Root],
) -> Generator[None, Iteration, list[tuple[Root, Captured]]]:
    """The arguments of the roots' calls in one plain iteration."""
    captured: list[tuple[Root, Captured]] = []
    before = [root.observer for root in roots]
    for _ in range(_TRIES):
        captured = [(root, Captured()) for root in roots]
        for root, observer in captured:
            root.observer = observer
        iteration = yield
        if not iteration.void:
            break
    for root, own in zip(roots, before, strict=True):
        root.observer = own
    return captured


def tokens(root: Root, captured: Captured) -> int:
    """Token ids that a root is given in an iteration; 0 where it is given none.

    They are the first integer tensor of at least two dimensions, for a model that embeds them.
    """
    if not any(isinstance(m, torch.nn.Embedding) for m in root.module.modules()):
        return 0
    for given in pytree.tree_leaves((captured.args, captured.kwargs)):
        if isinstance(given, torch.Tensor) and given.dtype in _IDS and given.dim() > 1:
            return captured.calls * given.numel() if min(given.shape) > 0 else 0
    return 0


def _single(captured: list[tuple[Root, Captured]]) -> tuple[float, ...] | None:
    """Forward and backward in float32, where the largest root computes in float64."""
    doubles = [(root, seen) for root, seen in captured if _double(root.module)]
    if not doubles:
        return None
    return single_precision(*max(doubles, key=lambda pair: _elements(pair[0].module)))


def _elements(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _double(module: torch.nn.Module) -> bool:
    return any(parameter.dtype == _DOUBLE for parameter in module.parameters())


def _peak() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _device_peak() -> int | None:
    return int(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else None
