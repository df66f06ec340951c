"""Nested values as scripts pass them: find the tensors, copy them, keep everything else.

`torch.utils._pytree` knows the containers that were registered with it. A script's own dataclass
or batch class is not, so the walk here follows attributes as well.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch

_DEPTH = 8  # of nesting that is followed
#: Followed no further: they hold no batch, or aren't ours to copy.
_OPAQUE = (str, bytes, int, float, complex, bool, type, torch.nn.Module, torch.dtype, torch.device)


def tensors_in(value: Any) -> dict[str, torch.Tensor]:
    """Every tensor in a nested value, by a path such as `[0].logits`; each one once."""
    return dict(_walk(value, "", set(), 0))


def plain_in(value: Any) -> dict[str, int | float | str]:
    """Every number and text in a nested value by its path, but for those inside tensors."""
    return dict(_plain(value, "", set(), 0))


def _plain(
    value: Any, path: str, seen: set[int], depth: int
) -> Iterator[tuple[str, int | float | str]]:
    if isinstance(value, (int, float, str)):
        yield path, value
        return
    opaque = value is None or isinstance(value, (torch.Tensor, *_OPAQUE))
    if opaque or id(value) in seen or depth > _DEPTH:
        return
    seen.add(id(value))
    for name, item in _items(value):
        yield from _plain(item, path + name, seen, depth + 1)


def _walk(value: Any, path: str, seen: set[int], depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if value is None or isinstance(value, _OPAQUE) or id(value) in seen or depth > _DEPTH:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    for name, item in _items(value):
        yield from _walk(item, path + name, seen, depth + 1)


def _items(value: Any) -> list[tuple[str, Any]]:
    """What a value holds, with the text that leads to it."""
    found: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        found += [(f"[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        found += [(f".{n}", item) for n, item in zip(value._fields, value, strict=False)]
    elif isinstance(value, (list, tuple)):
        found += [(f"[{index}]", item) for index, item in enumerate(value)]
    if dataclasses.is_dataclass(value):
        names = [f.name for f in dataclasses.fields(value)]
        return found + [(f".{name}", getattr(value, name, None)) for name in names]
    return found + [(f".{name}", item) for name, item in _attributes(value).items()]


def _attributes(value: Any) -> dict[str, Any]:
    """The instance attributes of an ordinary object; nothing for functions and modules."""
    attributes = getattr(value, "__dict__", None)
    return attributes if type(attributes) is dict and not callable(value) else {}


class Rebuild:
    """Copies nested values, putting `change(tensor)` in place of each tensor.

    The same tensor met twice becomes the same copy, also over several calls of one instance.
    Objects that hold no tensor stay themselves.
    """

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._change = change
        self._done: dict[int, tuple[Any, Any]] = {}  # the originals are kept, so ids stay theirs

    def __call__(self, value: Any, depth: int = 0) -> Any:
        """The copy of `value`."""
        if value is None or isinstance(value, _OPAQUE) or depth > _DEPTH:
            return value
        if id(value) not in self._done:
            self._done[id(value)] = (value, self._copied(value, depth + 1))
        return self._done[id(value)][1]

    def _copied(self, value: Any, depth: int) -> Any:
        if isinstance(value, torch.Tensor):
            return self._change(value)
        if isinstance(value, numpy.ndarray):
            return value.copy()
        if isinstance(value, tuple):
            items = [self(item, depth) for item in value]
            same = all(a is b for a, b in zip(items, value, strict=True))
            return value if same else tuple.__new__(type(value), items)
        if isinstance(value, (list, dict)) or tensors_in(_attributes(value)):
            return self._filled(copy.copy(value), value, depth)
        return value

    def _filled(self, twin: Any, value: Any, depth: int) -> Any:
        """Fill a shallow copy, going round setters that a class may have of its own."""
        if isinstance(value, dict):
            for key, item in value.items():
                dict.__setitem__(twin, key, self(item, depth))
        elif isinstance(value, list):
            list.__setitem__(twin, slice(None), [self(item, depth) for item in value])
        for name, item in _attributes(value).items():
            twin.__dict__[name] = self(item, depth)
        return twin


def size_of(tensors: Iterator[torch.Tensor] | list[torch.Tensor]) -> int:
    """Bytes that copies of these tensors take."""
    return sum(t.numel() * t.element_size() for t in tensors)
