"""Seam: what an optimizer's `state_dict` says while it runs in another way than the script's.

Loading a checkpoint restores the flags that choose an implementation, and keeps the memory layout
of the state. So a checkpoint that was saved under a plan would take `fused` or `capturable` into
plain Python, where the device may not have it; and state in channels_last beside contiguous
parameters makes fused kernels silently wrong. Hence checkpoints hold both as the script has them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

#: What chooses an implementation, and what dynamo sets on the way.
FLAGS = ("fused", "foreach", "capturable")


class OwnCheckpoint:
    """The script's own flags and layout in the checkpoints of one optimizer.

    Made while everything still is as the script has it.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._flags = [_flags(group) for group in optimizer.param_groups]
        self._defaults = _flags(optimizer.defaults)
        # The parameters themselves are kept, so that nothing else gets their identity.
        self._strides = {id(p): (p, p.stride()) for p in _dense(optimizer)}
        self._handle: Any = None

    def look(self) -> None:
        """See whether the optimizer differs from the script's own now; the hook is in only then."""
        if self._handle is None and self._differs:
            self._handle = self._optimizer.register_state_dict_post_hook(self._put)
        elif self._handle is not None and not self._differs:
            self._handle.remove()
            self._handle = None

    @property
    def _differs(self) -> bool:
        groups = self._optimizer.param_groups
        flags = any(_flags(group) != self._own(n) for n, group in enumerate(groups))
        return flags or any(p.stride() != own for p, own in self._strides.values())

    def _own(self, number: int) -> dict[str, Any]:
        return self._flags[number] if number < len(self._flags) else self._defaults

    def _put(self, optimizer: Optimizer, found: dict[str, Any]) -> dict[str, Any]:
        """Put the script's own into a fresh state_dict, whose groups are copies already."""
        for number, group in enumerate(found.get("param_groups", ())):
            own = self._own(number)
            group.update({name: own[name] for name in own if name in group})
        places = [p for group in optimizer.param_groups for p in group["params"]]
        state = found.get("state", {})
        for place, parameter in enumerate(places):
            _, own_stride = self._strides.get(id(parameter), (None, None))
            if own_stride is None or own_stride == parameter.stride() or place not in state:
                continue
            state[place] = {
                name: _laid_out(value, parameter, own_stride)
                for name, value in state[place].items()
            }
        return found


def _flags(group: dict[str, Any]) -> dict[str, Any]:
    return {name: group[name] for name in FLAGS if name in group}


def _dense(optimizer: Optimizer) -> list[torch.Tensor]:
    every = [p for group in optimizer.param_groups for p in group["params"]]
    return [p for p in every if p.layout == torch.strided and not torch.nn.parameter.is_lazy(p)]


def _laid_out(value: Any, parameter: torch.Tensor, stride: tuple[int, ...]) -> Any:
    if not isinstance(value, torch.Tensor) or value.shape != parameter.shape:
        return value
    if value.layout != torch.strided or value.stride() == stride:
        return value
    fresh = torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device)
    return fresh.copy_(value)
