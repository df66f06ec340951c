"""Seam: the memory layout of a module's two-dimensional convolutions.

Only the weights of convolutions are laid out anew, as copies of the same values behind the same
parameters, so that optimizers, hooks and checkpoints keep what they hold. Going back restores
each weight's own strides.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)


class Layout:
    """channels_last for the convolutions of one module, and for the batches that it is given."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._own: list[tuple[torch.Tensor, tuple[int, ...]]] = []
        self.on = False

    @property
    def convolutions(self) -> int:
        """Weights of two-dimensional convolutions."""
        return len(self._weights())

    @property
    def converted(self) -> int:
        """Those that lie in channels_last now."""
        last = torch.channels_last
        return sum(w.is_contiguous(memory_format=last) for w in self._weights())

    def set(self, on: bool) -> None:
        """Lay weights out in channels_last, or as the script has them."""
        if on and not self.on:
            weights = self._weights()
            self._own = [(w, w.stride()) for w in weights]
            for weight in weights:
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        elif self.on and not on:
            for weight, stride in self._own:
                if weight.stride() != stride:
                    fresh = torch.empty_strided(
                        weight.shape, stride, dtype=weight.dtype, device=weight.device
                    )
                    weight.data = fresh.copy_(weight.data)
            self._own = []
        self.on = on

    def _weights(self) -> list[torch.Tensor]:
        found = [m._parameters.get("weight") for m in self._module.modules() if _convolves(m)]
        return list({id(w): w for w in found if w is not None and _dense(w)}.values())


def _convolves(module: nn.Module) -> bool:
    return isinstance(module, _CONVOLUTIONS)


def _dense(tensor: torch.Tensor) -> bool:
    return not nn.parameter.is_lazy(tensor) and tensor.layout == torch.strided and tensor.dim() == 4


def to_channels_last(value: Any) -> Any:
    """A nested value with its images in channels_last."""
    return _changed(value, _last)


def to_contiguous(value: Any) -> Any:
    """A nested value with its images as code expects them that knows nothing of layouts."""
    return _changed(value, _first)


def _changed(value: Any, change: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    from hasten.instrument.proof.structure import Rebuild, tensors_in

    if all(change(tensor) is tensor for tensor in tensors_in(value).values()):
        return value
    return Rebuild(change)(value)


def _last(tensor: torch.Tensor) -> torch.Tensor:
    image = tensor.dim() == 4 and tensor.layout == torch.strided and tensor.is_floating_point()
    return tensor.contiguous(memory_format=torch.channels_last) if image else tensor


def _first(tensor: torch.Tensor) -> torch.Tensor:
    image = tensor.dim() == 4 and tensor.layout == torch.strided
    last = image and tensor.is_contiguous(memory_format=torch.channels_last)
    return tensor.contiguous() if last else tensor
