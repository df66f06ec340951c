"""Seam: the optimizer's step, through torch's own global step hooks.

An implementation (fused, foreach, for-loop) is switched in the parameter groups and in
`defaults`, so that groups added later follow. State has to be where an implementation wants it:
`step` as a float32 tensor on the parameter's device for fused, and every state and gradient with
the parameter's strides, since fused kernels read memory in order (with other strides they are
silently wrong: AdamW was seen to err by 0.27, SGD by 1.06 relative).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from hasten.instrument.seams.checkpoints import OwnCheckpoint
from hasten.instrument.seams.placement import move_state
from hasten.instrument.seams.stepping import CompiledStep, step_in_force

_FLAGS = ("fused", "foreach")
IMPLEMENTATIONS: dict[str, dict[str, bool]] = {
    "fused": {"fused": True, "foreach": False},
    "foreach": {"fused": False, "foreach": True},
    "forloop": {"fused": False, "foreach": False},
}


class OptimizerHandle:
    """One optimizer of the script under instrumentation."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.name = type(optimizer).__name__
        self.steps = 0
        self._own: list[dict[str, Any]] = [_flags(group) for group in optimizer.param_groups]
        self._own_defaults = _flags(optimizer.defaults)
        self._step = CompiledStep(optimizer)
        self._checkpoint = OwnCheckpoint(optimizer)

    def implementation(self, which: str | None) -> None:
        """Use "fused", "foreach" or "forloop" in every group; None: as the script has it."""
        groups = self.optimizer.param_groups
        for index, group in enumerate(groups):
            own = self._own[index] if index < len(self._own) else self._own_defaults
            _set(group, own if which is None else IMPLEMENTATIONS[which])
        _set(
            self.optimizer.defaults, self._own_defaults if which is None else IMPLEMENTATIONS[which]
        )
        align_state(self.optimizer)
        self._checkpoint.look()
        self.steps = 0

    def realign(self) -> None:
        """Give gradients and state the memory layout that their parameters have now."""
        align_state(self.optimizer)
        self._checkpoint.look()

    def follow(self) -> None:
        """Take its state to the devices that the parameters are on now."""
        move_state(self.optimizer)

    def compile(self, on: bool) -> None:
        """Step through torch.compile; False: as the script has it."""
        self._step.set(on)
        self.steps = 0

    @property
    def compilations(self) -> int:
        """Steps in which something was compiled."""
        return self._step.compilations

    @property
    def compilable(self) -> str:
        """Why its step can't be compiled; empty: it can."""
        return self._step.hindrance

    @property
    def supports_fused(self) -> bool:
        """Whether a step on clones with the fused implementation runs.

        Asked of torch by trying, on two small parameters like the first of each group: which
        classes, devices and dtypes have a fused form differs between versions.
        """
        if not all("fused" in group for group in self.optimizer.param_groups):
            return False
        try:
            trial = clone_optimizer(self.optimizer, limit=2)
            for group in trial.param_groups:
                _set(group, IMPLEMENTATIONS["fused"])
            trial._need_device_dtype_check_for_fused = True  # type: ignore[attr-defined]
            align_state(trial)
            step_unseen(trial)
        except (RuntimeError, TypeError, KeyError, ValueError, AssertionError):
            return False
        return True


def _flags(group: dict[str, Any]) -> dict[str, Any]:
    return {name: group[name] for name in _FLAGS if name in group}


def _set(group: dict[str, Any], flags: dict[str, Any]) -> None:
    """Set the flags that this class knows; `differentiable` and unknown ones stay."""
    for name, value in flags.items():
        if name in group:
            group[name] = value


def parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """Every parameter of every group."""
    for group in optimizer.param_groups:
        yield from group["params"]


def align_state(optimizer: Optimizer) -> None:
    """Put state and gradients where every implementation finds them, values unchanged."""
    for group in optimizer.param_groups:
        fused = bool(group.get("fused"))
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            if state:
                _align(state, parameter, fused)
            gradient = parameter.grad
            if gradient is not None and not _same_layout(gradient, parameter):
                parameter.grad = _restrided(gradient, parameter)


def _align(state: dict[str, Any], parameter: torch.Tensor, fused: bool) -> None:
    step = state.get("step")
    if fused and step is not None:
        value = step if isinstance(step, torch.Tensor) else torch.tensor(float(step))
        state["step"] = value.to(device=parameter.device, dtype=torch.float32)
    for name, value in state.items():
        if not isinstance(value, torch.Tensor) or value.shape != parameter.shape:
            continue
        if name != "step" and not _same_layout(value, parameter):
            state[name] = _restrided(value, parameter)


def _same_layout(tensor: torch.Tensor, like: torch.Tensor) -> bool:
    return tensor.layout != torch.strided or tensor.stride() == like.stride()


def _restrided(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    fresh = torch.empty_strided(like.shape, like.stride(), dtype=tensor.dtype, device=tensor.device)
    return fresh.copy_(tensor)


def clone_optimizer(optimizer: Optimizer, limit: int | None = None) -> Optimizer:
    """A copy that steps on copies of the parameters, gradients and state.

    Hooks of the script are left behind, so that a step of the copy has no effect outside it.

    Args:
        optimizer: what to copy.
        limit: copy at most this many parameters of each group.
    """
    twin = copy.copy(optimizer)
    twin.param_groups, twin.state = [], type(optimizer.state)(dict)
    for group in optimizer.param_groups:
        chosen = group["params"][:limit]
        clones = [_clone(parameter) for parameter in chosen]
        twin.param_groups.append({**group, "params": clones})
        for parameter, clone in zip(chosen, clones, strict=True):
            if parameter in optimizer.state:
                twin.state[clone] = _clone_state(optimizer.state[parameter])
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        setattr(twin, name, type(getattr(optimizer, name))())
    # Schedulers wrap `step` on the instance; the copy must use the class's own.
    vars(twin).pop("step", None)
    return twin


def step_unseen(optimizer: Optimizer, like: Optimizer | None = None) -> None:
    """Step without torch's step hooks, neither the script's nor ours.

    Args:
        optimizer: a copy.
        like: of which; when its step is compiled now, so is this one.
    """
    step_in_force(optimizer if like is None else like)(optimizer)


def _clone(parameter: torch.Tensor) -> torch.Tensor:
    clone = parameter.detach().clone().requires_grad_(parameter.requires_grad)
    if parameter.grad is not None:
        clone.grad = parameter.grad.detach().clone()
    return clone


def _clone_state(state: dict[str, Any]) -> dict[str, Any]:
    return {k: v.clone() if isinstance(v, torch.Tensor) else copy.copy(v) for k, v in state.items()}


class OptimizerEvents:
    """Registers torch's global step hooks and passes them on."""

    def __init__(
        self, before: Callable[[Optimizer], None], after: Callable[[Optimizer], None]
    ) -> None:
        self._before, self._after = before, after
        self._handles: list[Any] = []

    def install(self) -> None:
        """From now on every optimizer's step is seen."""
        from torch.optim import optimizer as module

        # torch's types say that a pre-hook returns new arguments; None leaves them as they are.
        self._handles = [
            module.register_optimizer_step_pre_hook(lambda o, a, k: self._before(o)),
            module.register_optimizer_step_post_hook(lambda o, a, k: self._after(o)),
        ]

    def uninstall(self) -> None:
        """Steps are seen no more."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
