"""Seam: what becomes of a batch between the loader and the script.

Batches are copied as they are handed out, on a stream of their own: it has nothing to wait for, so
the copy runs beside the iteration that the device still computes. `record_stream` tells torch's
allocator that the memory is used by the other stream as well.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

PINNED, DEVICE = "pinned", "device"


class Delivery:
    """Pins batches, or takes them to a device, before the script gets them.

    Attributes:
        how: "pinned", "device", or None: as they come.
        moved: tensors that were pinned or copied since the last change.
    """

    def __init__(self) -> None:
        self.set(None, "cpu")

    def set(self, how: str | None, device: str) -> None:
        """Hand batches out in another way from the next one on.

        Args:
            how: "pinned" or "device"; None: as they come.
            device: its type, such as "cuda".
        """
        self.how, self.device = how, torch.device(device)
        self.moved = 0
        self._stream = torch.Stream(self.device) if self._streams else None
        self._copied: list[torch.Tensor] = []

    @property
    def _streams(self) -> bool:
        return self.how == DEVICE and self.device.type in ("cuda", "xpu")

    def __call__(self, batch: Any) -> Any:
        """The batch as the script gets it: nested in the same way, everything else untouched."""
        if self.how is None:
            return batch
        from hasten.instrument.proof.structure import Rebuild

        change = self._pinned if self.how == PINNED else self._moved
        with self._on_stream():
            result = Rebuild(change)(batch)
        if self._stream is not None:
            present = _current_stream(self.device)
            present.wait_stream(self._stream)
            for tensor in self._copied:
                tensor.record_stream(present)
        self._copied = []
        return result

    def _on_stream(self) -> AbstractContextManager[Any]:
        if self._stream is None:
            return nullcontext()
        module: Any = getattr(torch, self.device.type)
        context: AbstractContextManager[Any] = module.stream(self._stream)
        return context

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cpu" or tensor.is_pinned() or tensor.layout != torch.strided:
            return tensor
        self.moved += 1
        return tensor.pin_memory()

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            return tensor
        self.moved += 1
        source = tensor.pin_memory() if self._streams and not tensor.is_pinned() else tensor
        copied = source.to(self.device, non_blocking=self._streams)
        self._copied.append(copied)
        return copied


def _current_stream(device: torch.device) -> Any:
    module: Any = getattr(torch, device.type)
    return module.current_stream(device)
