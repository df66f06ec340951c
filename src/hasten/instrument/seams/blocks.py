"""Seam: a module's repeated blocks, whose intermediate results are recomputed in the backward pass.

Blocks are the children of one class in a ModuleList or Sequential: the layers of a transformer,
the stages of a ResNet. Like the seam of roots, this one sits in `_compiled_call_impl`, which is
neither pickled nor deep-copied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hasten.instrument import patching
from hasten.instrument.seams.recomputing import changed, recomputed, writes

_CONTAINERS = (nn.ModuleList, nn.Sequential)


class Blocks:
    """The repeated blocks of one module.

    Attributes:
        calls: that will be recomputed, since the last change.
        trouble: why a block is called as the script has it; empty: none is.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._patches: list[patching.Patch] = []
        self.calls = 0
        self.trouble = ""

    @property
    def found(self) -> int:
        """Repeated blocks in the module."""
        return len(repeated(self._module))

    def set(self, every: int | None) -> None:
        """Recompute each block, each second one, and so on; None: as the script has it."""
        for patch in reversed(self._patches):
            patching.restore(patch)
        self._patches, self.calls = [], 0
        for block in repeated(self._module)[:: every or 1] if every else []:
            self._patches.append(
                patching.replace(block, "_compiled_call_impl", self._calling(block))
            )

    def _calling(self, block: nn.Module) -> Callable[..., Any]:
        eager = block._compiled_call_impl or block._call_impl
        known = False

        def called(*args: Any, **kwargs: Any) -> Any:
            nonlocal known
            if self.trouble or not torch.is_grad_enabled():
                return eager(*args, **kwargs)
            if not known:
                known = True
                self.trouble = self._examine(block, eager, args, kwargs)
                if self.trouble:
                    return eager(*args, **kwargs)
            self.calls += 1
            return recomputed(block, eager, args, kwargs)

        return called

    def _examine(
        self, block: nn.Module, eager: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
    ) -> str:
        """What a call changes besides its result, tried on copies; empty: nothing.

        The call itself is recomputed already, so that the first iteration fits as well.
        """
        from hasten.instrument.proof.state import ModuleState, RandomState
        from hasten.instrument.proof.structure import Rebuild, tensors_in

        args, kwargs = Rebuild(lambda tensor: tensor.detach().clone())((args, kwargs))
        inputs = tensors_in((args, kwargs))
        versions = {path: tensor._version for path, tensor in inputs.items()}
        name, random = type(block).__name__, RandomState()
        try:
            with ModuleState(block).in_force():
                before = writes(block)
                eager(*args, **kwargs)
                after = writes(block)
        finally:
            random.put()
        if any(tensor._version != versions[path] for path, tensor in inputs.items()):
            return f"{name} changes its input in place"
        own = running_statistics(block)
        others = [written for written in changed(before, after) if written not in own]
        return f"each call of {name} changes `{others[0]}`" if others else ""


def running_statistics(module: nn.Module) -> set[str]:
    """Buffers of batch norms, which the results in training don't depend on."""
    return {
        f"{prefix}.{name}".lstrip(".")
        for prefix, child in module.named_modules()
        if isinstance(child, _BatchNorm)
        for name in child._buffers
    }


def repeated(module: nn.Module) -> list[nn.Module]:
    """The outermost blocks of which a list or sequence holds several of one class.

    Blocks are worth recomputing when they have parameters and children of their own.
    """
    found: list[nn.Module] = []
    inside: set[int] = set()
    for holder in module.modules():
        if id(holder) in inside or not isinstance(holder, _CONTAINERS):
            continue
        worth = [child for child in holder if _is_block(child)]
        kinds = Counter(type(child) for child in worth)
        blocks = [child for child in worth if kinds[type(child)] > 1]
        found += blocks
        inside |= {id(inner) for block in blocks for inner in block.modules()}
    return list({id(block): block for block in found}.values())


def _is_block(module: nn.Module) -> bool:
    return next(module.children(), None) is not None and any(
        parameter.requires_grad for parameter in module.parameters()
    )
