"""Finds calls of `nn.MultiheadAttention` whose weights nothing uses, and times them without.

The weights are the second result, and asked for unless `need_weights=False` is given. They keep
the module from using the fused kernel.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from hasten.diagnosis import Place
from hasten.instrument.observe.functions import Known, Watcher, alike, here, name_of, tensors
from hasten.instrument.observe.instead import Instead

_FUNCTION = "multi_head_attention_forward"


@dataclass(eq=False)
class Asked:
    """One call that made weights.

    Attributes:
        at, library: the line, the user's or a library's.
        given: all arguments by name.
        used: the weights were.
    """

    at: Place | None
    library: str
    given: dict[str, Any]
    used: bool = False

    @property
    def key(self) -> Any:
        """The same for calls of the same shapes at the same line."""
        shapes = tuple((tuple(t.shape), t.dtype) for t in tensors(self.given))
        return self.at, self.library, shapes

    def facts(self) -> dict[str, Any]:
        """The "shape" of the queries."""
        return {"shape": list(self.given["query"].shape)}


class Weights(Watcher):
    """Every such call in one call of a model."""

    def __init__(self) -> None:
        self._known: Known[Asked] = Known()
        self._found: list[Asked] = []

    @property
    def calls(self) -> list[tuple[Asked, int]]:
        """Those whose weights nothing uses; alike ones once, and how many of them there are."""
        kept: dict[Any, tuple[Asked, int]] = {}
        for asked in self._found:
            if not asked.used:
                first, count = kept.get(asked.key, (asked, 0))
                kept[asked.key] = first, count + 1
        return list(kept.values())

    def called(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Weights are made, or used."""
        if tensors(result):
            self.returned(tensors(args, kwargs))
        if name_of(function) != _FUNCTION or result[1] is None:
            return
        bound = inspect.signature(F.multi_head_attention_forward).bind(*args, **kwargs)
        bound.apply_defaults()
        asked = Asked(*here(), dict(bound.arguments))
        self._found.append(asked)
        self._known.put(result[1], asked)

    def returned(self, tensors: Sequence[torch.Tensor]) -> None:
        """These are used, or leave the model."""
        for tensor in tensors:
            if (asked := self._known.get(tensor)) is not None:
                asked.used = True


def without(asked: Asked) -> Callable[[], Instead] | None:
    """Makes both ways of it; None: without weights the result is another."""

    def make() -> Instead:
        leaves = {id(t): alike(t) for t in tensors(asked.given)}
        given = pytree.tree_map_only(torch.Tensor, lambda t: leaves[id(t)], asked.given)
        return Instead(
            lambda: F.multi_head_attention_forward(**given)[0],
            lambda: F.multi_head_attention_forward(**{**given, "need_weights": False})[0],
            list(leaves.values()),
        )

    without_dropout = {**asked.given, "dropout_p": 0.0}
    with torch.no_grad():
        right, _ = F.multi_head_attention_forward(**without_dropout)
        found, _ = F.multi_head_attention_forward(**{**without_dropout, "need_weights": False})
    return make if torch.allclose(right, found, rtol=0.02, atol=0.02) else None
