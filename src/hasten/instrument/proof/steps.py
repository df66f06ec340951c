"""One optimizer step: recorded on copies, and made again under two implementations."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from hasten.instrument.proof.structure import size_of
from hasten.instrument.seams.optimizer import clone_optimizer, step_unseen

FLAGS = ("fused", "foreach", "capturable", "differentiable")
STEPS = 3  # with the same gradient: state that is written wrongly shows in the second


class RecordedStep:
    """Parameters, gradients and state as an optimizer is about to step."""

    def __init__(self, optimizer: Optimizer, names: dict[int, str], limit: int) -> None:
        self.optimizer = optimizer
        self.name = type(optimizer).__name__
        chosen, self.skipped = _sample(optimizer, limit)
        proxy = copy.copy(optimizer)
        proxy.param_groups = [
            {**group, "params": [p for p in group["params"] if id(p) in chosen]}
            for group in optimizer.param_groups
        ]
        self.twin = clone_optimizer(proxy)
        self.originals = [p for group in proxy.param_groups for p in group["params"]]
        self.names = [names.get(id(p), f"parameter {i}") for i, p in enumerate(self.originals)]

    @property
    def size(self) -> int:
        """Bytes of the copies."""
        return sum(_cost(self.twin, p) for p in _parameters(self.twin))

    def steps(self, move: Any = None) -> Steps:
        """Step copies as the script's optimizer is set up now.

        Flags, groups and memory layout are those of the real optimizer at this moment, so that
        what a setting did to them shows; values are the recorded ones.
        """
        trial = clone_optimizer(self.twin)
        _dress(trial, self.originals, self.optimizer)
        clones = list(_parameters(trial))
        if move is not None:
            _move(trial, clones, move)
        before = [p.detach().clone() for p in clones]
        kept = [None if p.grad is None else p.grad.detach().clone() for p in clones]
        _drop_lost(trial, clones, self.originals, self.optimizer)
        trial._need_device_dtype_check_for_fused = True  # type: ignore[attr-defined]
        for _ in range(STEPS):
            step_unseen(trial, self.optimizer)
            for parameter, gradient in zip(clones, kept, strict=True):
                if parameter.grad is not None and gradient is not None:
                    parameter.grad.copy_(gradient)  # fused steps may change it
        return Steps(self.names, before, clones, trial)


class Steps:
    """What a few steps did: movement of each parameter, state by name, and unlike strides."""

    def __init__(
        self,
        names: list[str],
        before: list[torch.Tensor],
        after: list[torch.Tensor],
        trial: Optimizer,
    ) -> None:
        self.updates = {n: a.detach() - b for n, a, b in zip(names, after, before, strict=True)}
        self.sizes = {n: float(b.double().norm()) for n, b in zip(names, before, strict=True)}
        self.state = {
            f"{name} ({key})": value.detach()
            for name, parameter in zip(names, after, strict=True)
            for key, value in trial.state.get(parameter, {}).items()
            if isinstance(value, torch.Tensor)
        }
        self.misaligned = [n for n, p in zip(names, after, strict=True) if _misaligned(trial, p)]


def _misaligned(trial: Optimizer, parameter: torch.Tensor) -> bool:
    """Whether a gradient or state of a parameter's shape lies in memory in another order."""
    beside = [parameter.grad, *trial.state.get(parameter, {}).values()]
    return any(
        isinstance(t, torch.Tensor) and t.shape == parameter.shape and not _same_order(t, parameter)
        for t in beside
    )


def _same_order(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.layout != torch.strided or b.layout != torch.strided:
        return True
    sizes = zip(a.shape, a.stride(), b.stride(), strict=True)
    return all(x == y for size, x, y in sizes if size > 1)


def _parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _cost(optimizer: Optimizer, parameter: torch.Tensor) -> int:
    state = [v for v in optimizer.state.get(parameter, {}).values() if isinstance(v, torch.Tensor)]
    gradient = [] if parameter.grad is None else [parameter.grad]
    return size_of([parameter, *gradient, *state])


def _sample(optimizer: Optimizer, limit: int) -> tuple[set[int], int]:
    """Identities of parameters that fit into `limit` bytes, spread over the whole list.

    Small ones first would leave out every matrix; so every n-th is taken, and what doesn't fit
    is passed over.
    """
    everyone = list(_parameters(optimizer))
    total = sum(_cost(optimizer, p) for p in everyone)
    stride = max(1, -(-total // max(1, limit)))
    order = [p for start in range(stride) for p in everyone[start::stride]]
    chosen: set[int] = set()
    used = 0
    for parameter in order:
        cost = _cost(optimizer, parameter)
        if used + cost <= limit:
            chosen.add(id(parameter))
            used += cost
    return chosen, len(everyone) - len(chosen)


def _dress(trial: Optimizer, originals: list[torch.Tensor], real: Optimizer) -> None:
    """Give copies the flags and memory layout that the real optimizer has now."""
    for group, present in zip(trial.param_groups, real.param_groups, strict=False):
        group.update({flag: present[flag] for flag in FLAGS if flag in present})
    for clone, original in zip(_parameters(trial), originals, strict=True):
        clone.data = _laid_out(clone.data, original)
        if clone.grad is not None:
            clone.grad = _laid_out(clone.grad, original if original.grad is None else original.grad)
        state, present = trial.state.pop(clone, {}), real.state.get(original, {})
        if kept := {k: _like(v, present[k]) for k, v in state.items() if k in present}:
            trial.state[clone] = kept


def _laid_out(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if tensor.layout != torch.strided or tensor.shape != like.shape:
        return tensor
    fresh = torch.empty_strided(like.shape, like.stride(), dtype=tensor.dtype, device=tensor.device)
    return fresh.copy_(tensor)


def _like(value: Any, present: Any) -> Any:
    """A recorded state value in the form in which the real optimizer keeps it now."""
    if isinstance(present, torch.Tensor):
        value = value if isinstance(value, torch.Tensor) else torch.tensor(value)
        value = value.to(device=present.device, dtype=present.dtype)
        return _laid_out(value, present)
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def _drop_lost(
    trial: Optimizer, clones: list[torch.Tensor], originals: list[torch.Tensor], real: Optimizer
) -> None:
    """Leave out copies whose originals the real optimizer doesn't step any more."""
    owned = {id(p) for p in _parameters(real)}
    lost = {
        id(c) for c, original in zip(clones, originals, strict=True) if id(original) not in owned
    }
    for group in trial.param_groups:
        group["params"] = [p for p in group["params"] if id(p) not in lost]


def _move(trial: Optimizer, clones: list[torch.Tensor], move: Any) -> None:
    """Move parameters, gradients and state by what `move` does in place."""
    for clone in clones:
        state = trial.state.get(clone, {})
        shaped = [v for v in state.values() if getattr(v, "shape", None) == clone.shape]
        for tensor in [clone.data, clone.grad, *shaped]:
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                move(tensor)
