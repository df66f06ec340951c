"""Gradients of many batches at the same weights, and what a noise scale needs of them.

A gradient is taken when the backward pass has ended, so clipping, and unscaling by a GradScaler,
which come later, don't change it. The weights are put back after each step. What is kept is the
sum of gradients of each group of steps: as much memory as the parameters, once a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psutil
import torch

from hasten.instrument import patching

_LEAST_GROUPS = 4
_SHARE = 0.25  # of free memory may be taken


class Gradients:
    """Collects gradients of one optimizer's parameters."""

    def __init__(self, parameters: Sequence[torch.Tensor], groups: int) -> None:
        self._parameters = [p for p in parameters if p.requires_grad]
        each = sum(p.numel() * 4 for p in self._parameters)
        room = int(_SHARE * psutil.virtual_memory().available) - 3 * each
        count = min(groups, room // max(1, each))
        self.trouble = "" if count >= _LEAST_GROUPS else "there is no memory for the gradients"
        self._weights = [p.detach().clone() for p in self._parameters] if not self.trouble else []
        self._groups: list[list[torch.Tensor]] = [[] for _ in range(max(count, 0))]
        self.counts = [0] * len(self._groups)
        self.squares = [0.0] * len(self._groups)
        self._last: list[torch.Tensor] | None = None
        self._patch: patching.Patch | None = None

    # --- in and out ------------------------------------------------------------------------------

    def install(self) -> None:
        """Look at each backward pass."""
        backward: Callable[..., Any] = torch.autograd.backward

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = backward(*args, **kwargs)
            self._last = None
            if not self.trouble:
                self._last = [_flat(p) for p in self._parameters]
            return result

        self._patch = patching.replace(torch.autograd, "backward", wrapped)

    def uninstall(self) -> None:
        """Look no more."""
        if self._patch is not None:
            patching.restore(self._patch)
            self._patch = None

    # --- steps -----------------------------------------------------------------------------------

    def border(self, valid: bool) -> None:
        """An iteration has ended: count its last gradient, and put the weights back."""
        last, self._last = self._last, None
        with torch.no_grad():
            for parameter, weight in zip(self._parameters, self._weights, strict=False):
                parameter.copy_(weight)
        if last is None or not valid:
            return
        square = sum(float(g.double().square().sum()) for g in last)
        if not square < float("inf"):
            return  # a scaler that finds infinities skips this step as well
        index = sum(self.counts) % len(self._groups)
        held = self._groups[index]
        self._groups[index] = last if not held else [a + b for a, b in zip(held, last, strict=True)]
        self.counts[index] += 1
        self.squares[index] += square

    def products(self) -> tuple[tuple[float, ...], ...]:
        """Inner products of the groups' sums."""
        return tuple(
            tuple(_product(a, b) for b in self._groups) for a in self._groups if a is not None
        )


def _flat(parameter: torch.Tensor) -> torch.Tensor:
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros(parameter.numel(), device=parameter.device)
    dense = gradient.to_dense() if gradient.layout != torch.strided else gradient
    return dense.detach().float().reshape(-1).clone()


def _product(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    return sum(float(a.double() @ b.double()) for a, b in zip(one, other, strict=False))
