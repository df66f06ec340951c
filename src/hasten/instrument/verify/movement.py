"""Which parameters have moved, by how much, and which of them ever had a gradient."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from hasten.instrument.verify import facts

_ENTRIES = 4096  # of a parameter whose movement is measured; a smaller one is kept whole
#: A parameter that moves by less than this part of what others do has moved by rounding.
_SLIGHT = 0.1


class Movement:
    """Parameters as they were when `mark` was called, against what they are now.

    A bias before a batch norm has a gradient that is nothing but rounding. Whether it moves by a
    bit depends on the format, and means nothing; so besides the bits it is known how far it moved.
    """

    def __init__(self) -> None:
        self._bits: dict[str, Any] = {}
        self._entries: dict[str, torch.Tensor] = {}
        self._moved_by_gradient: set[int] = set()
        self._steps = 0

    def __bool__(self) -> bool:
        return bool(self._bits)

    def mark(self, roots: Iterable[Any]) -> None:
        """Look at the parameters now."""
        for name, parameter in facts.named_parameters(roots):
            self._bits[name] = facts.bits(parameter)
            self._entries[name] = _entries(parameter)

    def before_step(self, optimizer: Optimizer) -> None:
        """Note which parameters have a gradient; now and then, since that takes time."""
        self._steps += 1
        if self._steps & (self._steps - 1):  # no power of two
            return
        for group in optimizer.param_groups:
            self._moved_by_gradient |= {id(p) for p in group["params"] if p.grad is not None}

    def still(self, roots: Iterable[Any]) -> list[str]:
        """Names of parameters that have not changed by a bit."""
        now = {n: facts.bits(p) for n, p in facts.named_parameters(roots)}
        return [name for name, bits in self._bits.items() if now.get(name) == bits]

    def without_gradient(self, roots: Iterable[Any]) -> list[str]:
        """Names of parameters that were never seen with one at an optimizer's step."""
        named = facts.named_parameters(roots)
        return [n for n, p in named if n in self._bits and id(p) not in self._moved_by_gradient]

    def slight(self, roots: Iterable[Any]) -> list[str]:
        """Names of parameters that have moved, but far less than most."""
        far = {
            name: float((_entries(parameter) - self._entries[name]).square().mean().sqrt())
            for name, parameter in facts.named_parameters(roots)
            if name in self._entries and parameter.numel()
        }
        moved = [distance for distance in far.values() if distance > 0]
        limit = _SLIGHT * statistics.median(moved) if moved else 0.0
        return [name for name, distance in far.items() if 0 < distance < limit]


def _entries(parameter: torch.Tensor) -> torch.Tensor:
    """Some of its entries, evenly spread."""
    plain = parameter.detach()
    if plain.layout != torch.strided:
        plain = plain.to_dense()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    flat = plain.reshape(-1)
    return flat[:: max(1, flat.numel() // _ENTRIES)].to("cpu", torch.float64, copy=True)
