"""Seam: how gradients are cleared, through `zero_grad` of optimizers and of modules.

A script that calls `zero_grad(set_to_none=False)` fills every gradient with zeros, to which the
next backward pass adds. Clearing them to None instead saves both passes over memory. A parameter
that the next backward pass doesn't reach would then have no gradient where the script has zeros,
and optimizers treat the two differently (momentum and decay go on with zeros); so it gets its
zeros before the step, and the update stays what it was.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from hasten.instrument import patching


class Clearing:
    """`zero_grad` of a loop's optimizers, and of modules that hold their parameters.

    Args:
        optimizers: those of the loop now.
        names: of parameters, by identity.

    Attributes:
        filled: calls that wanted zeros, since the last change.
        untouched: parameters whose gradient a step found filled with zeros and reached by no
            backward pass since, while watching.
    """

    def __init__(
        self, optimizers: Callable[[], Sequence[Optimizer]], names: Callable[[], dict[int, str]]
    ) -> None:
        self._optimizers, self._names = optimizers, names
        self.filled = 0
        self.untouched: list[str] = []
        self._none = self._watching = self._followed = False
        self._patches: list[patching.Patch] = []
        self._handles: list[Any] = []
        self._had: set[int] = set()  # parameters that would hold zeros or a gradient by now
        self._waiting: dict[int, torch.Tensor] = {}  # filled with zeros, not reached since

    def to_none(self, on: bool) -> None:
        """Clear to None where the script fills with zeros; False: as the script has it."""
        self._leave()
        if on:
            self._none = True
            self._had = {id(p) for p in self._parameters() if p.grad is not None}
            self._enter()

    def watch(self) -> None:
        """Look how the script clears, and which parameters a step finds without a gradient."""
        self._leave()
        self._enter()
        self._watching = True

    def unwatch(self) -> None:
        """Stop looking; what was seen stays."""
        filled = self.filled
        self._leave()
        self.filled = filled

    def _parameters(self) -> Iterator[torch.Tensor]:
        for optimizer in self._optimizers():
            for group in optimizer.param_groups:
                yield from group["params"]

    # --- in and out -----------------------------------------------------------------------

    def _enter(self) -> None:
        clear = torch.nn.Module.zero_grad
        seam = self

        def zero_grad(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
            seam._clear(self.parameters(), _bound(clear, self), args, kwargs)

        self._patches = [patching.replace(torch.nn.Module, "zero_grad", zero_grad)]
        for optimizer in self._optimizers():
            self._patches.append(self._redirected(optimizer))
            handle = optimizer.register_step_pre_hook(self._before_step)
            # First, so that every other hook sees the gradients that the step will use.
            hooks: Any = optimizer._optimizer_step_pre_hooks
            hooks.move_to_end(handle.id, last=False)
            self._handles.append(handle)

    def _redirected(self, optimizer: Optimizer) -> patching.Patch:
        clear = optimizer.zero_grad

        def zero_grad(self: Optimizer, *args: Any, **kwargs: Any) -> None:
            owned = (p for group in self.param_groups for p in group["params"])
            seam._clear(owned, clear, args, kwargs)

        seam = self
        return patching.replace(optimizer, "zero_grad", types.MethodType(zero_grad, optimizer))

    def _leave(self) -> None:
        for handle in self._handles:
            handle.remove()
        for patch in reversed(self._patches):
            patching.restore(patch)
        if self._none:
            self._fill(self._parameters())
        self._handles, self._patches = [], []
        self._none = self._watching = self._followed = False
        self._had, self._waiting, self.filled = set(), {}, 0

    # --- events ---------------------------------------------------------------------------

    def _clear(
        self,
        parameters: Iterator[torch.Tensor],
        clear: Callable[..., None],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        bound = _asked(clear, args, kwargs)
        given = [p for p in parameters if p.grad is not None]
        if bound is None or bound.arguments["set_to_none"]:
            clear(*args, **kwargs)
            self._had -= {id(p) for p in given if p.grad is None}
            return
        self.filled += 1
        if not self._none:
            clear(*args, **kwargs)
            self._follow()
            self._waiting.update({id(p): p for p in given})
            return
        owned = {id(p) for p in self._parameters()}
        if all(id(p) in owned for p in given):  # others would get no zeros back before a step
            self._had |= {id(p) for p in given}
            bound.arguments["set_to_none"] = True
        clear(*bound.args, **bound.kwargs)

    def _follow(self) -> None:
        """See which parameters backward passes reach; only for scripts that fill with zeros."""
        if not self._watching or self._followed:
            return
        self._followed = True
        for parameter in self._parameters():
            if parameter.requires_grad and parameter.is_leaf:
                register: Any = parameter.register_post_accumulate_grad_hook
                self._handles.append(register(self._reached))

    def _reached(self, parameter: torch.Tensor) -> None:
        self._waiting.pop(id(parameter), None)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        mine = [p for group in optimizer.param_groups for p in group["params"]]
        if self._none:
            self._fill(iter(mine))
        for parameter in mine:
            if self._waiting.pop(id(parameter), None) is not None:
                name = self._names().get(id(parameter), "a parameter")
                if name not in self.untouched:
                    self.untouched.append(name)

    def _fill(self, parameters: Iterator[torch.Tensor]) -> None:
        """Give zeros where the script would have them."""
        for parameter in parameters:
            if parameter.grad is None and id(parameter) in self._had:
                parameter.grad = torch.zeros_like(parameter)


def _bound(function: Callable[..., None], owner: Any) -> Callable[..., None]:
    return types.MethodType(function, owner)


def _asked(
    clear: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> inspect.BoundArguments | None:
    """The arguments with `set_to_none` among them; None where this method doesn't know it."""
    try:
        bound = inspect.signature(clear).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return None
    bound.apply_defaults()
    return bound if "set_to_none" in bound.arguments else None
