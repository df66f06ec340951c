"""Seam: the device that a root and what belongs to it are on.

Tensors move behind the same parameters, so that optimizers, hooks and the script's own references
go on holding them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer


def move_module(module: torch.nn.Module, device: str) -> None:
    """Take parameters, their gradients and buffers of a module to a device."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.grad is not None:
            gradient = tensor.grad.to(device)
            tensor.grad = None  # autograd refuses one on another device
            tensor.data = tensor.data.to(device)
            tensor.grad = gradient
        else:
            tensor.data = tensor.data.to(device)


def move_state(optimizer: Optimizer) -> None:
    """Take what an optimizer keeps for each parameter to where the parameter is now."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            for name, value in state.items():
                # `step` stays on the CPU, where every implementation but fused wants it.
                if isinstance(value, torch.Tensor) and (name != "step" or group.get("fused")):
                    state[name] = value.to(parameter.device)


def to_device(value: Any, device: str) -> Any:
    """A nested value with its tensors on a device."""
    from hasten.instrument.proof.structure import Rebuild, tensors_in

    wanted = torch.device(device)
    if all(tensor.device.type == wanted.type for tensor in tensors_in(value).values()):
        return value
    return Rebuild(lambda tensor: tensor.to(wanted))(value)
