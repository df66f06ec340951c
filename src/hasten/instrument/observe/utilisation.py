"""Observes how busy NVIDIA's GPU says that it is, and what it draws, where its library answers.

Facts: "busy" (percent of the time in which a kernel ran) and "watts", each a list with a look
about every second. Only with a GPU in use. (Not yet seen on one.)
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.log import Log
from hasten.instrument.recorder import Iteration

_EVERY = 1.0  # seconds
_LOOKS = 600


class Utilisation(Observer):
    """What NVML says of the GPU."""

    name: ClassVar[str] = "utilisation"

    def __init__(self, library: Callable[[], Any] | None = None) -> None:
        self._library = library or _nvml
        self._device: tuple[Any, Any] | None = None
        self._asked = False
        self._next = 0.0
        self._busy: list[int] = []
        self._watts: list[float] = []

    def iteration_ended(self, log: Log, iteration: Iteration) -> None:
        """Now and then, ask."""
        now = time.perf_counter()
        if now < self._next or len(self._busy) >= _LOOKS or not log.observing:
            return
        self._next = now + _EVERY
        if not self._asked:
            self._asked, self._device = True, self._library()
        if self._device is None:
            return
        nvml, handle = self._device
        rates, milliwatts = (ctypes.c_uint * 2)(), ctypes.c_uint()  # of GPU and memory
        if nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) == 0:
            self._busy.append(int(rates[0]))
        if nvml.nvmlDeviceGetPowerUsage(handle, ctypes.byref(milliwatts)) == 0:
            self._watts.append(milliwatts.value / 1000)

    def finish(self, log: Log, conductor: Any) -> dict[str, Any]:
        """What it said."""
        if not self._busy and not self._watts:
            return {}
        return {"busy": self._busy, "watts": self._watts}


def _nvml() -> tuple[Any, Any] | None:
    """NVIDIA's management library and its handle of torch's present device; None: neither."""
    if not torch.cuda.is_available():
        return None
    place = torch.cuda.get_device_properties(torch.cuda.current_device())
    where = [getattr(place, f"pci_{part}_id", -1) for part in ("domain", "bus", "device")]
    if min(where) < 0:  # an older torch
        return None
    name = f"{where[0]:08x}:{where[1]:02x}:{where[2]:02x}.0"
    try:
        nvml, handle = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        if nvml.nvmlInit_v2() != 0:
            return None
        found = nvml.nvmlDeviceGetHandleByPciBusId_v2(name.encode(), ctypes.byref(handle))
        return (nvml, handle) if found == 0 else None
    except (OSError, AttributeError):
        return None
