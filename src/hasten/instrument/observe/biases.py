"""Finds biases that a batch norm takes away again, and times their layers without them.

A convolution (or a linear layer of rows) adds its bias, and all that is done with the result is a
batch norm in training mode, which subtracts the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hasten.diagnosis import Place
from hasten.instrument.observe.functions import Known, Watcher, alike, here, name_of, tensors
from hasten.instrument.observe.instead import Instead

_LAYERS = ("conv1d", "conv2d", "conv3d", "linear")
_TRAINING = 5  # where batch_norm has it among its arguments


@dataclass(eq=False)
class Biased:
    """One layer with a bias.

    Attributes:
        at, library: the line, the user's or a library's.
        normed: its result went into a batch norm.
        used: and into something else.
    """

    at: Place | None
    library: str
    function: Callable[..., torch.Tensor]
    args: tuple[Any, ...]
    normed: bool = False
    used: bool = False

    @property
    def key(self) -> Any:
        """The same for layers of the same shapes at the same line."""
        shapes = tuple((tuple(t.shape), t.stride(), t.dtype) for t in tensors(self.args))
        return self.at, self.library, name_of(self.function), shapes, repr(self.args[3:])

    def facts(self) -> dict[str, Any]:
        """The "layer"."""
        return {"layer": name_of(self.function)}


class Biases(Watcher):
    """Every such layer in one call of a model."""

    def __init__(self) -> None:
        self._known: Known[Biased] = Known()
        self._found: list[Biased] = []

    @property
    def layers(self) -> list[tuple[Biased, int]]:
        """Those whose bias does nothing; alike ones once, and how many of them there are."""
        kept: dict[Any, tuple[Biased, int]] = {}
        for layer in self._found:
            if layer.normed and not layer.used:
                first, count = kept.get(layer.key, (layer, 0))
                kept[layer.key] = first, count + 1
        return list(kept.values())

    def called(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """A layer has a result, or it goes somewhere."""
        name = name_of(function)
        if not tensors(result):
            return
        training = kwargs.get("training", *args[_TRAINING : _TRAINING + 1])
        normed = name == "batch_norm" and bool(training)
        for tensor in tensors(args, kwargs):
            if (layer := self._known.get(tensor)) is not None:
                layer.normed = layer.normed or normed
                layer.used = layer.used or not normed
        biased = name in _LAYERS and len(args) > 2 and isinstance(args[2], torch.Tensor)
        if biased and not kwargs and (name != "linear" or result.dim() == 2):
            layer = Biased(*here(), function, args)
            self._found.append(layer)
            self._known.put(result, layer)

    def returned(self, tensors: Sequence[torch.Tensor]) -> None:
        """What leaves the model may be used."""
        for tensor in tensors:
            if (layer := self._known.get(tensor)) is not None:
                layer.used = True


def unbiased(layer: Biased) -> Callable[[], Instead]:
    """Makes both ways of it."""

    def make() -> Instead:
        args = [alike(a) if isinstance(a, torch.Tensor) else a for a in layer.args]
        without = [*args[:2], None, *args[3:]]
        return Instead(
            lambda: layer.function(*args), lambda: layer.function(*without), tensors(args)
        )

    return make
