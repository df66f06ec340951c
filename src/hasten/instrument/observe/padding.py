"""Observes how much of each training batch is padding, and times the model on shorter batches.

Padding is what a model has a name for: the `padding_idx` of one of its embeddings, or zeros of an
`attention_mask`. Facts: "batches", a list with "length" and "rows" (what of each row is no padding
before or after it), and "by", which of the two it is.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeGuard

import torch
from torch.utils import _pytree as pytree

from hasten.instrument.observe.arithmetic import Captured
from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.instead import Instead, in_turns
from hasten.instrument.observe.log import Log
from hasten.instrument.seams.loader_random import preserved
from hasten.instrument.seams.root import Root

_BATCHES = 64
_BYTES = 1 << 18  # of one tensor that is looked at
_IDS = (torch.int64, torch.int32)
_MASK = "attention_mask"
FRACTIONS = (0.75, 0.5, 0.25)  # of the length at which a model is timed


class Padding(Observer):
    """The rows of training batches."""

    name: ClassVar[str] = "padding"

    def __init__(self) -> None:
        self._seen: list[tuple[list[torch.Tensor], torch.Tensor | None]] = []

    def fetched(self, log: Log, loader: Any, batch: Any, training: bool) -> None:
        """Keep its tokens: a script may write into them."""
        if not training or len(self._seen) >= _BATCHES:
            return
        mask: Any = batch.get(_MASK) if isinstance(batch, Mapping) else None
        kept = [tensor.clone() for tensor in _tokens(batch)]
        self._seen.append((kept, mask.clone() if _small(mask) else None))

    def finish(self, log: Log, conductor: Any) -> dict[str, Any]:
        """How long rows are without their padding."""
        roots = conductor.seams.roots if conductor.seams is not None else []
        masked = [mask for _, mask in self._seen if mask is not None]
        if masked and len(masked) == len(self._seen):
            return {"by": _MASK, "batches": [_batch(mask != 0) for mask in masked]}
        for pad in sorted({pad for root in roots for pad in pads(root.module)}):
            batches = [_batch(_largest(tokens) != pad) for tokens, _ in self._seen if tokens]
            if batches and len(batches) == len(self._seen):
                return {"by": f"padding_idx={pad}", "batches": batches}
        return {}


def pads(module: torch.nn.Module) -> set[int]:
    """The padding indices of its embeddings."""
    kinds = torch.nn.Embedding, torch.nn.EmbeddingBag
    found = (part.padding_idx for part in module.modules() if isinstance(part, kinds))
    return {int(pad) for pad in found if pad is not None}


def _small(tensor: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(tensor, torch.Tensor) and tensor.dim() == 2 and tensor.nbytes <= _BYTES


def _tokens(batch: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(dict(batch) if isinstance(batch, Mapping) else batch)
    return [t for t in leaves if _small(t) and t.dtype in _IDS and min(t.shape) > 1]


def _largest(tokens: Sequence[torch.Tensor]) -> torch.Tensor:
    return max(tokens, key=lambda tensor: tensor.numel())


def _batch(real: torch.Tensor) -> dict[str, Any]:
    """Length and rows of a batch, whose rows are along the dimension that ends in padding."""
    if _ragged(real.t()) and not _ragged(real):
        real = real.t()
    places = torch.arange(real.shape[1], device=real.device)
    last = torch.where(real, places, -1).amax(1)
    first = torch.where(real, places, real.shape[1]).amin(1)
    return {"length": real.shape[1], "rows": (last - first + 1).clamp(min=0).tolist()}


def _ragged(real: torch.Tensor) -> bool:
    """Whether all rows are real first and padded then."""
    return bool((real[:, 1:] <= real[:, :-1]).all())


def shorter(root: Root, captured: Captured, seconds: float) -> list[dict[str, Any]]:
    """What a call takes with batches of a fraction of their length, on a copy of the model.

    Returns:
        For each of FRACTIONS "fraction", "length" (of the call as it is), "as_is" and "instead"
        (seconds, see instead.py); empty where inputs aren't padded or can't be cut.
    """
    length = _length(root, captured)
    if not length or root.own_compile:
        return []
    found = []
    try:
        twin = copy.deepcopy(root.module)
        for fraction in FRACTIONS:
            cut = _cut(captured, length, max(1, round(fraction * length)))

            def make(cut: Any = cut) -> Instead:
                return Instead(
                    lambda: twin(*(captured.args or ()), **captured.kwargs),
                    lambda: twin(*cut[0], **cut[1]),
                    [parameter for parameter in twin.parameters() if parameter.requires_grad],
                )

            with preserved(), captured.formats():
                times = in_turns(make, 1, root.device, seconds / len(FRACTIONS))
            if not times[0]:
                break
            as_is, instead = ([captured.calls * one for one in way] for way in times)
            entry = {"fraction": fraction, "length": length, "as_is": as_is, "instead": instead}
            found.append(entry)
    except Exception:  # code of the script, with inputs that it did not expect
        return []
    return found


def _length(root: Root, captured: Captured) -> int:
    """Of the rows of the call's tokens, when they are padded; 0: they aren't."""
    mask: Any = captured.kwargs.get(_MASK)
    if _small(mask):
        return int(mask.shape[1]) if bool(mask.eq(0).any()) else 0
    tokens = _tokens([captured.args, captured.kwargs])
    if not tokens:
        return 0
    largest = _largest(tokens)
    for pad in pads(root.module):
        if bool((largest == pad).any()) and largest.shape[0] != largest.shape[1]:
            return int(_batch(largest != pad)["length"])
    return 0


def _cut(captured: Captured, length: int, short: int) -> Any:
    def cut(tensor: torch.Tensor) -> torch.Tensor:
        for dim, size in enumerate(tensor.shape):
            if size == length:
                tensor = tensor.narrow(dim, 0, short)
        return tensor.contiguous()

    return pytree.tree_map_only(torch.Tensor, cut, (captured.args, captured.kwargs))
