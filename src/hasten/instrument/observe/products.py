"""Products of attention, whatever function they are written with, in one common form.

Queries, keys and values are then (batch..., length, features), scores (batch..., queries, keys).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

_EINSUM = re.compile(r"(\w+),(\w+)->(\w+)")
_LETTERS = "abcdefgh"  # of batch dimensions, for products that aren't written with letters


@dataclass(frozen=True)
class Product:
    """One product of two tensors.

    Attributes:
        first: index of the left tensor among the arguments; the right one follows it.
        left: the order of dimensions that brings the left tensor into the common form.
        keys, values: likewise for the right one, as keys and as values.
        back: the order that brings a result in the common form into the one that it has here.
    """

    first: int
    left: tuple[int, ...]
    keys: tuple[int, ...]
    values: tuple[int, ...]
    back: tuple[int, ...]

    @property
    def plain(self) -> bool:
        """Whether the result is in the common form."""
        return self.back == tuple(range(len(self.back)))

    def operands(
        self, args: Sequence[Any], leaves: dict[int, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and keys of a product that makes scores, or the leaves for them."""
        left, right = (leaves.get(id(a), a) for a in args[self.first : self.first + 2])
        return left.permute(self.left), right.permute(self.keys)

    def value(self, args: Sequence[Any], leaves: dict[int, torch.Tensor]) -> torch.Tensor:
        """Values of a product with weights, or the leaf for them."""
        value: torch.Tensor = args[self.first + 1]
        return leaves.get(id(value), value).permute(self.values)


def product(name: str, args: Sequence[Any]) -> Product | None:
    """A batch of matrix products; None: this isn't one."""
    first = int(name == "einsum")
    pair = args[first:]
    if len(pair) != 2 or not all(isinstance(one, torch.Tensor) for one in pair):
        return None
    dims = [one.dim() for one in pair]
    if first:
        written = _EINSUM.fullmatch(str(args[0]).replace(" ", ""))
        if written is None or [len(part) for part in written.groups()[:2]] != dims:
            return None
        left, right, result = written.groups()
    elif dims[0] != dims[1] or not 3 <= dims[0] <= len(_LETTERS):
        return None
    else:
        batch = _LETTERS[: dims[0] - 2]
        left, right, result = f"{batch}mk", f"{batch}kn", f"{batch}mn"
    return _by_letters(first, left, right, result)


def _by_letters(first: int, left: str, right: str, result: str) -> Product | None:
    sets = set(left), set(right), set(result)
    if any(len(s) != len(word) for s, word in zip(sets, (left, right, result), strict=True)):
        return None
    batch = [letter for letter in left if letter in sets[1] & sets[2]]
    kinds = sets[0] & sets[2] - sets[1], sets[1] & sets[2] - sets[0], sets[0] & sets[1] - sets[2]
    if not batch or any(len(kind) != 1 for kind in kinds) or len(result) != len(batch) + 2:
        return None
    (row,), (column,), (summed,) = kinds
    common = [*batch, row, column]
    return Product(
        first,
        tuple(left.index(letter) for letter in (*batch, row, summed)),
        tuple(right.index(letter) for letter in (*batch, column, summed)),
        tuple(right.index(letter) for letter in (*batch, summed, column)),
        tuple(common.index(letter) for letter in result),
    )
