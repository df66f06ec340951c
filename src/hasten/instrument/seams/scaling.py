"""Seam: loss scaling for float16, without a line of the script changed.

Gradients below 6e-8 are zeros in float16, so the backward pass starts from the loss's gradient
times a power of two, and each parameter's gradient is divided by it as it arrives: to the script,
to clipping, hooks and accumulation, gradients are what they always were, and powers of two change
no bit. When the scale is too large, gradients overflow: that step is left out by letting the
optimizer find no gradients, which every optimizer of torch passes over, the schedulers leave out
their step as well, and the scale is halved. Source of the rule: Micikevicius et al., "Mixed
Precision Training" (2018), section 3.2; constants as in torch.amp.GradScaler.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hasten.instrument import patching

FIRST, LARGEST = 2.0**16, 2.0**24
_GROWTH_AFTER = 2000  # steps in a row that were finite
_LOOKED_AT = 3  # backward passes after a change whose graph is searched for foreign leaves
_NODES = 50_000


class LossScaling:
    """Scaled backward passes of a loop.

    Args:
        modules: the roots of the loop now.
        optimizers: those of the loop now.

    Attributes:
        scale: a power of two.
        passes: scaled backward passes since the last change.
        skipped: steps that were left out since the last change.
        trouble: why gradients may be wrong; empty: they aren't.
    """

    def __init__(
        self,
        modules: Callable[[], Sequence[torch.nn.Module]],
        optimizers: Callable[[], Sequence[Optimizer]],
    ) -> None:
        self._modules, self._optimizers = modules, optimizers
        self.scale = FIRST
        self.passes = self.skipped = 0
        self.trouble = ""
        self.on = False
        self._active = False
        self._good = 0
        self._patch: patching.Patch | None = None
        self._schedulers: list[patching.Patch] = []
        self._handles: list[Any] = []
        self._hooked: dict[int, torch.Tensor] = {}
        self._kept: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._counts: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()

    def set(self, on: bool) -> None:
        """Scale from the next backward pass on, or no more."""
        if on == self.on:
            return
        self.on, self.passes, self.skipped, self.trouble = on, 0, 0, ""
        if on:
            self._patch = patching.replace(torch.autograd, "backward", self._backward)
            self._schedulers = [self._followed(cls) for cls in _scheduler_classes()]
            for optimizer in self._optimizers():
                self._handles.append(optimizer.register_step_pre_hook(self._before_step))
                self._handles.append(optimizer.register_step_post_hook(self._after_step))
            return
        for patch in reversed(self._schedulers):
            patching.restore(patch)
        assert self._patch is not None
        patching.restore(self._patch)
        for handle in self._handles:
            handle.remove()
        self._patch, self._schedulers, self._handles, self._hooked = None, [], [], {}

    # --- backward -------------------------------------------------------------------------

    def _backward(self, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        assert self._patch is not None
        backward = self._patch.old  # looked up: what lies below may have been taken out
        if self._active or "grad_variables" in kwargs:
            # Within a backward pass (checkpointing): what comes is scaled already.
            return backward(tensors, grad_tensors, *args, **kwargs)
        self._hook_parameters()
        many = not isinstance(tensors, torch.Tensor)
        roots = list(tensors) if many else [tensors]
        if self.passes < _LOOKED_AT:
            self._look(roots)
        self.passes += 1
        self._active = True
        seeds = self._seeds(roots, grad_tensors)
        try:
            # One loss stays one: what lies below reads it.
            if many:
                return backward(roots, seeds, *args, **kwargs)
            return backward(tensors, seeds[0], *args, **kwargs)
        finally:
            self._active = False

    def _seeds(self, roots: list[Any], given: Any) -> list[Any]:
        """The gradients from which the pass starts, scaled."""
        seeds = [given] if isinstance(given, torch.Tensor) else list(given or [None] * len(roots))
        return [self._seed(root, seed) for root, seed in zip(roots, seeds, strict=True)]

    def _seed(self, root: Any, seed: torch.Tensor | None) -> torch.Tensor | None:
        if seed is not None:
            return seed * self.scale
        if isinstance(root, torch.Tensor) and root.requires_grad and root.numel() == 1:
            return torch.full_like(root, self.scale)
        return None  # torch says what is wrong with it

    def _hook_parameters(self) -> None:
        """Every parameter, also those that were added or set free since."""
        for parameter in self._parameters():
            if not parameter.requires_grad or id(parameter) in self._hooked:
                continue
            self._hooked[id(parameter)] = parameter
            handle = parameter.register_hook(self._unscale)  # type: ignore[no-untyped-call]
            self._handles.append(handle)
            # Before the script's own hooks, which must see true gradients. Autograd calls them in
            # the order of insertion, so `move_to_end` wouldn't do.
            hooks: Any = parameter._backward_hooks
            others = [(key, hook) for key, hook in hooks.items() if key != handle.id]
            for key, _ in others:
                del hooks[key]
            hooks.update(others)

    def _parameters(self) -> Iterable[torch.Tensor]:
        for module in self._modules():
            yield from module.parameters()
        for optimizer in self._optimizers():
            for group in optimizer.param_groups:
                yield from group["params"]

    def _unscale(self, gradient: torch.Tensor) -> torch.Tensor | None:
        return gradient * (1.0 / self.scale) if self._active else None

    def _look(self, roots: list[Any]) -> None:
        """Leaves that aren't parameters would get scaled gradients."""
        nodes = [root.grad_fn for root in roots if isinstance(root, torch.Tensor)]
        seen: set[Any] = set()
        while nodes and len(seen) < _NODES:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            leaf = getattr(node, "variable", None)
            if isinstance(leaf, torch.Tensor) and id(leaf) not in self._hooked:
                self.trouble = "a tensor that is no parameter wants a gradient, which comes scaled"
                return
            nodes.extend(following for following, _ in node.next_functions)

    # --- steps ----------------------------------------------------------------------------

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        given = [
            (p, p.grad) for g in optimizer.param_groups for p in g["params"] if p.grad is not None
        ]
        real, left_out = self._counts.get(optimizer, (0, 0))
        if finite([gradient for _, gradient in given]):
            self._counts[optimizer] = real + 1, left_out
            self._good += 1
            if self._good >= _GROWTH_AFTER:
                self.scale, self._good = min(LARGEST, self.scale * 2), 0
            return
        self._counts[optimizer] = real, left_out + 1
        self.skipped += 1
        self.scale, self._good = max(1.0, self.scale / 2), 0
        self._kept[id(optimizer)] = given
        for parameter, _ in given:
            parameter.grad = None

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for parameter, gradient in self._kept.pop(id(optimizer), []):
            parameter.grad = gradient

    # --- schedulers -----------------------------------------------------------------------

    def _followed(self, cls: type) -> patching.Patch:
        original = vars(cls)["step"]

        def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._leaves_out(scheduler):
                return original(scheduler, *args, **kwargs)
            return None

        return patching.replace(cls, "step", step)

    def _leaves_out(self, scheduler: Any) -> bool:
        """Whether every step since this scheduler's last one was left out, and there was one."""
        optimizer = getattr(scheduler, "optimizer", None)
        now = (0, 0) if optimizer is None else self._counts.get(optimizer, (0, 0))
        before = self._counts.get(scheduler, (0, 0))
        self._counts[scheduler] = now
        return now[0] == before[0] and now[1] > before[1]


def _scheduler_classes() -> list[type]:
    """Every class of schedulers, torch's and the script's, that has a `step` of its own."""
    from torch.optim import lr_scheduler

    found: dict[type, None] = {LRScheduler: None}
    waiting: list[type] = [LRScheduler, lr_scheduler.ReduceLROnPlateau]
    while waiting:
        cls = waiting.pop()
        found[cls] = None
        below: list[type] = cls.__subclasses__()
        waiting += [c for c in below if c not in found]
    return [cls for cls in found if "step" in vars(cls)]


def finite(gradients: list[torch.Tensor]) -> bool:
    """Whether every value of every gradient is finite; one wait for each device."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for gradient in gradients:
        values = gradient._values() if gradient.is_sparse else gradient
        by_device.setdefault(values.device, []).append(values)
    return all(
        bool(torch.stack([n.isfinite() for n in torch._foreach_norm(group, float("inf"))]).all())
        for group in by_device.values()
    )
