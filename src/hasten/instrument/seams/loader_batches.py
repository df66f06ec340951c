"""Batches of any shape: compare them leaf by leaf, and hand the same one out again."""

from __future__ import annotations

import copy
import hashlib
import pickle
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import numpy
import torch

_PLAIN = (str, int, float, bool, complex, bytes, type(None), Enum, torch.dtype, torch.device)
_DEEPEST = 32


class Incomparable(Exception):
    """A batch holds something whose value cannot be told."""


def leaves(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """The path and digest of each value in a batch, in a fixed order.

    Args:
        value: tensors, arrays, plain values, and any nesting of mappings, sequences, sets and
            objects that hold them.
        path: how to reach `value` from the batch.
        depth: of the nesting so far.

    Raises:
        Incomparable: something in it can neither be walked through nor pickled.
    """
    if depth > _DEEPEST:
        raise Incomparable(f"the batch is nested deeper than {_DEEPEST} at {path}")
    if isinstance(value, torch.Tensor):
        yield path, _tensor(value)
    elif isinstance(value, (numpy.ndarray, numpy.generic)) and not value.dtype.hasobject:
        raw = numpy.ascontiguousarray(value).tobytes()
        yield path, _digest(f"{value.dtype}{value.shape}".encode(), raw)
    elif isinstance(value, _PLAIN):
        yield path, _digest(f"{type(value).__name__}:{value!r}".encode())
    elif isinstance(value, Mapping):
        yield path, _digest(f"{type(value).__name__}:{list(map(repr, value))}".encode())
        for key in value:
            yield from leaves(value[key], f"{path}[{key!r}]", depth + 1)
    elif isinstance(value, (list, tuple, numpy.ndarray)):
        yield path, _digest(f"{type(value).__name__}:{len(value)}".encode())
        for place, item in enumerate(value):
            yield from leaves(item, f"{path}[{place}]", depth + 1)
    elif isinstance(value, (set, frozenset)):
        inner = sorted(digest for item in value for _, digest in leaves(item, path, depth + 1))
        yield path, _digest(type(value).__name__.encode(), *(d.encode() for d in inner))
    else:
        yield from _object(value, path, depth)


def _object(value: Any, path: str, depth: int) -> list[tuple[str, str]]:
    """Walk through an object's attributes, or take it as a whole where that doesn't work."""
    kind = type(value).__qualname__
    state = getattr(value, "__dict__", None)
    if state:
        try:
            inner = [leaf for k, v in state.items() for leaf in leaves(v, f"{path}.{k}", depth + 1)]
            return [(path, _digest(kind.encode(), str(list(state)).encode())), *inner]
        except Incomparable:
            pass
    try:
        return [(path, _digest(kind.encode(), pickle.dumps(value, 4)))]
    except Exception as error:  # pickling runs code of the script
        raise Incomparable(f"{kind} at {path or 'the batch'} cannot be compared") from error


def _tensor(value: torch.Tensor) -> str:
    head = f"{type(value).__name__}{value.dtype}{tuple(value.shape)}{value.layout}".encode()
    if value.layout is not torch.strided and "sparse" in str(value.layout):
        value = value.to_dense()
    try:
        flat = value.detach().cpu().contiguous().reshape(-1)
        return _digest(head, flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    except (RuntimeError, TypeError, NotImplementedError):  # quantised, nested
        return _digest(head, pickle.dumps(value.detach(), 4))


def _digest(*parts: bytes) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def difference(one: list[tuple[str, str]], other: list[tuple[str, str]]) -> str | None:
    """The path of the first value in which two batches differ; None: they are equal."""
    for (path, digest), (other_path, other_digest) in zip(one, other, strict=False):
        if (path, digest) != (other_path, other_digest):
            return path or "the batch"
    return None if len(one) == len(other) else "the number of entries"


class Replay:
    """The same batch again and again, whatever the script does to the one it was given.

    Plain tensors are handed out without a copy as long as their version counter says that
    nobody wrote to them, for the copy would count as time of the data.
    """

    def __init__(self, batch: Any) -> None:
        self._pristine = _clone(batch)
        self._pinned = _pinned(batch)  # a copy isn't, and its way to the device would be slower
        self._lent: dict[int, tuple[torch.Tensor, int]] = {}

    def __call__(self) -> Any:
        """The batch, equal to the recorded one."""
        return self._lend(self._pristine)

    def _lend(self, value: Any) -> Any:
        if type(value) is torch.Tensor:
            return self._lend_tensor(value)
        if type(value) is dict:
            return {key: self._lend(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(self._lend, value))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self._lend, value))
        return value if isinstance(value, _PLAIN) else _clone(value)

    def _lend_tensor(self, pristine: torch.Tensor) -> torch.Tensor:
        lent, version = self._lent.get(id(pristine), (None, 0))
        if lent is None or lent._version != version or lent.requires_grad:
            lent = pristine.clone()
            lent = lent.pin_memory() if self._pinned else lent
            self._lent[id(pristine)] = lent, lent._version
        return lent


def _clone(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # it cannot be copied: the script gets the same one again
        return value


def _pinned(value: Any) -> bool:
    """Whether its first tensors lie in page-locked memory."""
    if isinstance(value, torch.Tensor):
        return value.is_pinned()
    inner = value.values() if isinstance(value, Mapping) else value
    return isinstance(value, (Mapping, list, tuple)) and any(map(_pinned, list(inner)[:8]))
