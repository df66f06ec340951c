"""Seam: calls of outermost modules before the loop is known.

What saves memory has to be there from the first iteration on, or there is no second one. Until
roots are recognised, every outermost module that is called to be trained counts as one.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hasten.instrument import patching
from hasten.instrument.seams.blocks import Blocks
from hasten.instrument.seams.recomputing import recomputing
from hasten.instrument.seams.root import is_compiled
from hasten.instrument.seams.splitting import Splitting

Call = Callable[..., Any]


class EarlyCalls:
    """Makes calls in parts, or recomputes blocks, until the loop is known.

    Args:
        parts: of a batch, or None.
        every: block to recompute, or None.
    """

    def __init__(self, parts: int | None, every: int | None) -> None:
        self._parts, self._every = parts, every
        self._known: weakref.WeakKeyDictionary[nn.Module, tuple[Splitting, Blocks]]
        self._known = weakref.WeakKeyDictionary()
        self._inside = threading.local()
        self._patch: patching.Patch | None = None

    def install(self) -> None:
        """Look at every outermost call."""
        original: Call = nn.Module.__call__
        early = self

        def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return early._call(self, original, args, kwargs)

        self._patch = patching.replace(nn.Module, "__call__", __call__)

    def uninstall(self) -> None:
        """Leave all calls as they are."""
        if self._patch is not None:
            patching.restore(self._patch)
            self._patch = None
        for _, blocks in list(self._known.values()):
            blocks.set(None)

    def _call(self, module: nn.Module, original: Call, args: tuple[Any, ...], kwargs: Any) -> Any:
        inside = getattr(self._inside, "now", False) or recomputing()
        if inside or not torch.is_grad_enabled() or not module.training or is_compiled(module):
            return original(module, *args, **kwargs)
        self._inside.now = True
        try:
            splitting = self._seam(module)
            if splitting is None or not splitting.on:
                return original(module, *args, **kwargs)
            # Not `original`: by the time of the backward pass it may lead to the seam of roots.
            return splitting.call(module._compiled_call_impl or module._call_impl, args, kwargs)
        finally:
            self._inside.now = False

    def _seam(self, module: nn.Module) -> Splitting | None:
        """The seam of a module that can be trained."""
        if module not in self._known:
            if not any(p.requires_grad for p in module.parameters()):
                return None
            seams = Splitting(module), Blocks(module)
            seams[0].set(self._parts)
            seams[1].set(self._every)
            self._known[module] = seams
        return self._known[module][0]
