"""Counts the arithmetic of an iteration, and measures how fast the machine multiplies matrices."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils import _pytree as pytree

from hasten.instrument.seams.loader_random import preserved
from hasten.instrument.seams.root import Root

_SIZES = {"cpu": 1024}  # rows of the matrices; accelerators need larger ones
_LARGE = 8192
_TRIES = 5
_SECONDS = 0.6  # for one dtype
_PAIRS = 3


def peaks(device: str, dtypes: set[str]) -> dict[str, float]:
    """Measured operations a second of a large matmul on this device, by dtype.

    Args:
        device: type of device.
        dtypes: names such as "float32"; those that the device refuses are left out.
    """
    found: dict[str, float] = {}
    for name in sorted(dtypes):
        try:
            found[name] = _peak(device, getattr(torch, name))
        except (RuntimeError, NotImplementedError):
            continue
    return found


def _peak(device: str, dtype: torch.dtype) -> float:
    rows = _SIZES.get(device, _LARGE)
    matrix = torch.ones(rows, rows, dtype=dtype, device=device)
    best, deadline = float("inf"), time.perf_counter() + _SECONDS
    with torch.no_grad():
        for _ in range(_TRIES + 1):
            best = min(best, timed(lambda: torch.mm(matrix, matrix), device))
            if time.perf_counter() > deadline:
                break
    return 2.0 * rows**3 / best


def timed(work: Callable[[], Any], device: str) -> float:
    """Seconds of some work, on the device as well."""
    _wait(device)
    begun = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - begun


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
    elif device != "cpu" and hasattr(torch, "accelerator"):
        torch.accelerator.synchronize()


class Captured:
    """The arguments of a root's first call in an iteration, and how often it was called."""

    def __init__(self) -> None:
        self.calls = 0
        self._autocast: tuple[str, torch.dtype] | None = None
        self.args: tuple[Any, ...] | None = None
        self.kwargs: dict[str, Any] = {}

    def __call__(self, root: Root, run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An observer of the root's calls."""
        self.calls += 1
        if self.args is None:
            if torch.is_autocast_enabled(root.device):
                self._autocast = root.device, torch.get_autocast_dtype(root.device)
            self.args, self.kwargs = pytree.tree_map_only(torch.Tensor, _copied, (args, kwargs))
        return run(*args, **kwargs)

    def formats(self) -> AbstractContextManager[Any]:
        """The autocast that the script was in."""
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self._autocast[0], dtype=self._autocast[1])


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def count(root: Root, captured: Captured) -> int:
    """Operations of a root's calls in an iteration with their backward passes; 0: not countable.

    Counted by torch's own counter on a copy: on the model itself the counter would change what
    a dropout draws.
    """
    from torch.utils.flop_counter import FlopCounterMode

    if captured.args is None or root.own_compile:
        return 0
    counter = FlopCounterMode(display=False)
    try:
        twin = copy.deepcopy(root.module)
        with preserved(), counter:
            run_once(twin, captured.args, captured.kwargs)
    except Exception:  # code of the script, in a place that it did not expect
        return 0
    return captured.calls * int(counter.get_total_flops())


def single_precision(root: Root, captured: Captured) -> tuple[float, float] | None:
    """Seconds of forward and backward of a copy as it is and of one in float32; None: it fails."""
    if captured.args is None:
        return None
    try:
        as_is = copy.deepcopy(root.module)
        single = copy.deepcopy(root.module).float()
        cast = pytree.tree_map_only(torch.Tensor, _single, (captured.args, captured.kwargs))
        own: list[float] = []
        other: list[float] = []
        given = captured.args, captured.kwargs
        with preserved():  # a dropout draws
            for _ in range(_PAIRS + 1):
                own.append(timed(lambda: run_once(as_is, *given), root.device))
                other.append(timed(lambda: run_once(single, *cast), root.device))
    except Exception:  # code of the script, in a format that it did not expect
        return None
    return statistics.median(own[1:]), statistics.median(other[1:])


def _single(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def run_once(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
    """Forward, and backward from the sum of what comes out."""
    result = pytree.tree_leaves(module(*args, **kwargs))
    outputs = [t for t in result if isinstance(t, torch.Tensor) and t.requires_grad]
    sum(output.sum() for output in outputs).backward()  # type: ignore[union-attr]
