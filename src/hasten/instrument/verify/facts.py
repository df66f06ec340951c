"""Facts of one batch, of parameters and of checkpoints, as small values that compare."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from hasten.instrument.seams.loader_batches import Incomparable, leaves

_NAMES = 20_000  # of a checkpoint that are kept
_DEEPEST = 6  # levels of its containers
_FLAGS = ("foreach", "fused")


def samples(batch: Any) -> int | None:
    """The length of a batch: that of its first tensor, or of what it is itself."""
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0:
            return len(leaf)
    return len(batch) if isinstance(batch, (list, tuple)) else None


def tokens(batch: Any) -> int | None:
    """Tokens in a batch: what its attention mask lets pass, else the entries of its token ids.

    Token ids are an entry called `input_ids`, or the first matrix of whole numbers.
    """
    if isinstance(batch, Mapping):
        mask = batch.get("attention_mask")
        if isinstance(mask, torch.Tensor) and mask.dim() == 2:
            return int(mask.sum())
        ids = batch.get("input_ids")
        if isinstance(ids, torch.Tensor):
            return ids.numel()
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.dim() == 2 and leaf.dtype in _WHOLE:
            return leaf.numel()
    return None


_WHOLE = (torch.int64, torch.int32)


def content(batch: Any) -> str:
    """Digest of all values of a batch; empty: something in it can't be compared."""
    try:
        return digest(part for leaf in leaves(batch) for part in leaf)
    except Incomparable:
        return ""


def multiset(indices: Iterable[Any]) -> str:
    """Digest of the samples' indices, in whatever order they come."""
    return digest(sorted(repr(index) for index in indices))


def quick_multiset(indices: Iterable[Any]) -> str:
    """The same in microseconds, for whole numbers only; empty: it isn't known."""
    kept = tuple(indices)
    if not all(type(index) is int for index in kept):
        return ""
    return str(hash(tuple(sorted(kept))))


def counted(indices: Counter[Any]) -> str:
    """Digest of indices and how often each occurs."""
    return digest(sorted(f"{index!r} {count}" for index, count in indices.items()))


def digest(parts: Iterable[str]) -> str:
    """Of strings in their order."""
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        found.update(part.encode("utf-8", "surrogateescape") + b"\0")
    return found.hexdigest()


def bits(parameter: torch.Tensor) -> tuple[Any, ...]:
    """A value that changes when a bit of the parameter does: two sums of its bit patterns.

    The second one weighs each entry by its place, so that entries that change places are seen.
    """
    plain = parameter.detach()
    if plain.layout != torch.strided or plain.is_complex():
        return (float(plain.to_dense().abs().double().sum()),)
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    flat = plain.contiguous().reshape(-1).view(whole[plain.element_size()]).long()
    places = torch.arange(1, flat.numel() + 1, device=flat.device)
    return int(flat.sum()), int((flat * places).sum())


def named_parameters(roots: Iterable[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter of the roots; names begin with the root's number where there are several."""
    modules = [root.module for root in roots]
    for number, module in enumerate(modules):
        before = f"{number}." if len(modules) > 1 else ""
        for name, parameter in module.named_parameters():
            yield before + name, parameter


def checkpoint_keys(roots: Iterable[Any], optimizers: Iterable[Any]) -> list[str]:
    """What checkpoints of models and optimizers hold: names, shapes and formats, no values.

    Of optimizers also the flags that choose an implementation, since loading one restores them.
    """
    found: list[str] = []
    for number, root in enumerate(roots):
        for key, value in root.module.state_dict().items():
            found.append(f"model {number}: {key}{_form(value)}")
    for number, handle in enumerate(optimizers):
        state = handle.optimizer.state_dict()
        for place, entry in state["state"].items():
            names = sorted(map(str, entry)) if isinstance(entry, Mapping) else ["?"]
            found += [f"optimizer {number}: state {place} {name}" for name in names]
        for place, group in enumerate(state["param_groups"]):
            found += [f"optimizer {number}: group {place} {name}" for name in sorted(group)]
            found += [f"optimizer {number}: {n} = {group[n]}" for n in _FLAGS if n in group]
    return found


def _form(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return ""
    dtype = str(value.dtype).removeprefix("torch.")
    return f" {tuple(value.shape)} {dtype}"


def saved_keys(value: Any) -> list[str]:
    """Names in something that the script saves, such as "model.fc.weight"."""
    found: list[str] = []
    _walk(value, "", found, 0)
    return found


def _walk(value: Any, path: str, found: list[str], depth: int) -> None:
    if len(found) >= _NAMES or depth > _DEEPEST:
        return
    if isinstance(value, torch.nn.Module):
        value = value.state_dict()
    if not isinstance(value, Mapping):
        found.append(path)
        return
    for key, item in value.items():
        _walk(item, f"{path}.{key}" if path else str(key), found, depth + 1)
