"""Seam: modules inside of a root that stay in float32 while the root runs under autocast.

Like the root's own call it sits in `_compiled_call_impl`, which is neither pickled nor copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from hasten.instrument import patching

_REDUCED = (torch.bfloat16, torch.float16)


class KeptModules:
    """The modules of one root that are kept in float32.

    Args:
        module: the root.
        name: of the root, which names of modules may begin with.
    """

    def __init__(self, module: torch.nn.Module, name: str) -> None:
        self._module, self._name = module, name
        self._patches: list[patching.Patch] = []

    def __bool__(self) -> bool:
        return bool(self._patches)

    def set(self, names: Sequence[str], device: str) -> None:
        """Keep these from the next call on, and no others.

        Args:
            names: as in `named_modules`; those of other roots are passed over.
            device: type of the device whose autocast is turned off for them.
        """
        for patch in reversed(self._patches):
            patching.restore(patch)
        known = dict(self._module.named_modules())
        found = [known.get(n) or known.get(n.removeprefix(f"{self._name}.")) for n in names if n]
        self._patches = [
            patching.replace(m, "_compiled_call_impl", _in_float32(m, device))
            for m in found
            if m is not None and m is not self._module
        ]


def _in_float32(module: torch.nn.Module, device: str) -> Callable[..., Any]:
    # The script's own compiled form of the module goes on being used.
    call = module._compiled_call_impl or module._call_impl

    def called(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, enabled=False):
            return call(*pytree.tree_map(_wide, args), **pytree.tree_map(_wide, kwargs))

    return called


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in _REDUCED else value
