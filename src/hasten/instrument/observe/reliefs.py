"""Reliefs: what a diagnosis takes away from the script for single blocks, to measure its cost.

A relief may change what the script computes, since nothing of the run is kept. Each is a context
manager that leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch

from hasten.instrument import patching
from hasten.instrument.observe.places import users_frame


@contextmanager
def anomaly() -> Iterator[None]:
    """Anomaly detection off, also where the script turns it on in each iteration."""
    before, checks = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    torch.set_anomaly_enabled(False)
    patch = patching.replace(torch, "set_anomaly_enabled", lambda *args, **kwargs: None)
    try:
        yield
    finally:
        patching.restore(patch)
        torch.set_anomaly_enabled(before, checks)


@contextmanager
def compile() -> Iterator[None]:
    """Everything that the script has compiled runs as it was written."""
    with torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def copies() -> Iterator[None]:
    """Copies between devices are made once for each line and shape, then handed out again.

    What a graph goes through is copied as ever.
    """
    kept: dict[Any, torch.Tensor] = {}
    patches = [
        patching.replace(torch.Tensor, name, _kept(getattr(torch.Tensor, name), name, kept))
        for name in ("to", "cuda", "cpu")
    ]
    try:
        yield
    finally:
        for patch in reversed(patches):
            patching.restore(patch)


def _kept(original: Any, name: str, kept: dict[Any, torch.Tensor]) -> Any:
    def copying(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or tensor.requires_grad:
            return original(tensor, *args, **kwargs)
        device = _target(name, args, kwargs)
        if device is None or device.type == tensor.device.type:
            return original(tensor, *args, **kwargs)
        key = users_frame(), tuple(tensor.shape), tensor.dtype, device, str(args), str(kwargs)
        if key not in kept:
            kept[key] = original(tensor, *args, **kwargs)
        return kept[key]

    return copying


def _target(name: str, args: Any, kwargs: Any) -> torch.device | None:
    """The device that a call moves to; None: none is named."""
    if name != "to":
        return torch.device(name)
    try:
        device: torch.device | None = torch._C._nn._parse_to(*args, **kwargs)[0]
    except (RuntimeError, TypeError):  # `copy=`, which it does not know
        return None
    return device


@contextmanager
def average() -> Iterator[None]:
    """No DistributedDataParallel makes processes average their gradients."""
    from torch.nn.parallel import DistributedDataParallel

    forward: Callable[..., Any] = DistributedDataParallel.forward

    def alone(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.no_sync():
            return forward(self, *args, **kwargs)

    patch = patching.replace(DistributedDataParallel, "forward", alone)
    try:
        yield
    finally:
        patching.restore(patch)


RELIEFS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "anomaly": anomaly,
    "average": average,
    "compile": compile,
    "copies": copies,
}


@contextmanager
def relieved(names: tuple[str, ...]) -> Iterator[None]:
    """With the reliefs of these names.

    Raises:
        KeyError: there is none of that name.
    """
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(RELIEFS[name]())
        yield
