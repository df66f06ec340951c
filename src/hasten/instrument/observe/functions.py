"""Watches the functions of torch that one call of a model uses, on a copy of it.

The watched call is made on the side, with recorded arguments, at the level at which the user wrote
it: `torch.matmul`, `a * b`, `F.softmax`. What happens inside those isn't seen. A watcher looks for
a pattern; how much each one costs is then measured by itself (attention.py).
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, Generic, TypeVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from hasten.diagnosis import Place
from hasten.instrument.observe.arithmetic import Captured
from hasten.instrument.observe.places import is_users, place
from hasten.instrument.proof.structure import tensors_in
from hasten.instrument.seams.loader_random import preserved
from hasten.instrument.seams.root import Root

_DEEPEST = 200  # frames between an operation and the call of the model
_T = TypeVar("_T")


class Watcher:
    """Looks at one function after another."""

    def called(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """A function has returned."""

    def returned(self, tensors: Sequence[torch.Tensor]) -> None:
        """The model has returned these."""


class _Mode(TorchFunctionMode):
    def __init__(self, watchers: Sequence[Watcher]) -> None:
        super().__init__()
        self._watchers = watchers

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        for watcher in self._watchers:
            watcher.called(func, args, kwargs, result)
        return result


def watch(root: Root, captured: Captured, watchers: Sequence[Watcher]) -> bool:
    """Make a recorded call on a copy of the model, and show watchers what it does.

    Returns:
        Whether it could be made.
    """
    if captured.args is None or root.own_compile or root.graphs[0]:
        return False  # what the script has compiled isn't run function by function
    try:
        twin = copy.deepcopy(root.module)
        with preserved(), captured.formats(), _Mode(watchers):
            result = _called_on_the_side(twin, captured)
        for watcher in watchers:
            watcher.returned(list(tensors_in(result).values()))
    except Exception:  # code of the script, in a place that it did not expect
        return False
    return True


def _called_on_the_side(module: torch.nn.Module, captured: Captured) -> Any:
    return module(*captured.args or (), **captured.kwargs)


def here() -> tuple[Place | None, str]:
    """Where the user's code is in a watched call, and as a text where it is a library's."""
    library = ""
    for frame in _frames():
        code = frame.f_code
        if is_users(code.co_filename):
            return place(code.co_filename, frame.f_lineno, code.co_name), ""
        if not library and not code.co_filename.startswith(_torch_and_ours()):
            library = f"{code.co_filename}:{frame.f_lineno}"
    return None, library


def _torch_and_ours() -> tuple[str, ...]:
    import hasten

    return tuple(str(module.__file__).rpartition("/")[0] + "/" for module in (torch, hasten))


def _frames() -> Iterator[FrameType]:
    """From the innermost one to the model's call; the script stands further out, elsewhere."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_DEEPEST):
        if frame is None or frame.f_code is _called_on_the_side.__code__:
            return
        yield frame
        frame = frame.f_back


class Known(Generic[_T]):
    """Something that is known of tensors while they live; it doesn't keep them alive."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], _T]] = {}

    def get(self, tensor: Any) -> _T | None:
        """What is known of this one."""
        known = self._known.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def put(self, tensor: torch.Tensor, fact: _T) -> None:
        """Know something of it."""
        self._known[id(tensor)] = weakref.ref(tensor), fact


def tensors(*values: Any) -> list[torch.Tensor]:
    """The tensors among a function's arguments."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def name_of(function: Any) -> str:
    """A function's name without what only tells methods from functions: "add" for `__iadd__`."""
    name = str(getattr(function, "__name__", "")).strip("_")
    return name[1:] if name in _PREFIXED else name


_PREFIXED = frozenset(p + n for p in "ir" for n in ("add", "sub", "mul", "truediv", "matmul"))


def alike(tensor: torch.Tensor) -> torch.Tensor:
    """A leaf of the same numbers, strides and need for a gradient."""
    copied = tensor.detach().clone(memory_format=torch.preserve_format)
    return copied.requires_grad_(tensor.requires_grad and tensor.is_floating_point())
