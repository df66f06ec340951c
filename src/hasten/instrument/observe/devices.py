"""Observes copies between devices, and reads that wait for an accelerator.

Only where there is one: without it neither exists. Events: "copy" (facts: source, target, bytes,
pinned, non_blocking, parameter) and "sync" (facts: what). Copies are a phase of the iteration.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.log import Log
from hasten.instrument.observe.places import called_by_user, users_frame

_COPIES = ("to", "cuda", "cpu")
_READS = ("item", "tolist", "numpy", "__float__", "__int__", "__bool__", "nonzero")


def accelerator() -> Any | None:
    """The accelerator's device of this machine; None: there is none."""
    if hasattr(torch, "accelerator"):
        return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return torch.device("cuda") if torch.cuda.is_available() else None


class Devices(Observer):
    """What goes between devices."""

    name: ClassVar[str] = "devices"

    def __init__(self, present: Callable[[], Any | None] = accelerator) -> None:
        self._present = present
        self._recorder: Any = None

    def attach(self, recorder: Any) -> None:
        """The recorder that copies are a phase of."""
        self._recorder = recorder

    def start(self, log: Log) -> None:
        """Hook copies and reads."""
        if self._present() is None:
            return
        for name in _COPIES:
            log.replace(torch.Tensor, name, self._copying(log, name))
        for name in _READS:
            log.replace(torch.Tensor, name, self._reading(log, name))
        if torch.cuda.is_available():
            log.wrap(torch.cuda, "synchronize", "sync", lambda *a, **k: {"what": "synchronize"})

    def _copying(self, log: Log, name: str) -> Callable[..., Any]:
        original = getattr(torch.Tensor, name)
        from hasten.instrument.observe.conductor import COPY

        def copying(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(tensor, *args, **kwargs)
            recorder, at = self._recorder, users_frame()
            begun = time.perf_counter()
            recorder.enter(COPY)
            try:
                result = original(tensor, *args, **kwargs)
            finally:
                recorder.leave()
            if result.device != tensor.device:
                facts = _copy_facts(tensor, result, kwargs)
                log.event("copy", "", time.perf_counter() - begun, at, **facts)
            return result

        return copying

    def _reading(self, log: Log, name: str) -> Callable[..., Any]:
        original = getattr(torch.Tensor, name)

        def reading(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or tensor.device.type == "cpu" or not called_by_user():
                return original(tensor, *args, **kwargs)
            at, begun = users_frame(), time.perf_counter()
            try:
                return original(tensor, *args, **kwargs)
            finally:
                log.event("sync", "", time.perf_counter() - begun, at, what=name)

        return reading


def _copy_facts(tensor: Any, result: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    host = tensor.device.type == "cpu"
    return {
        "source": tensor.device.type,
        "target": result.device.type,
        "bytes": tensor.numel() * tensor.element_size(),
        "pinned": bool(host and tensor.is_pinned()),
        "non_blocking": bool(kwargs.get("non_blocking")),
        "parameter": isinstance(tensor, torch.nn.Parameter),
    }
