"""Reliefs: what a diagnosis takes away from the script for single blocks, to measure its cost.

A relief may change what the script computes, since nothing of the run is kept. Each is a context
manager that leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch

from hasten.instrument import patching


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


RELIEFS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "anomaly": anomaly,
    "compile": compile,
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
