"""How far one tensor is from another: sums that can be put together over tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

_CHUNK = 1 << 20  # elements in double precision at a time
_CHUNK_CPU = 1 << 15  # so that all that is computed of them stays in the cache
_SMALL = 0.1  # of the root mean square: what is smaller may well be rounded to zero
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Deviation:
    """A candidate tensor against its reference.

    Attributes:
        count: elements.
        difference: squared norm of candidate minus reference.
        reference: squared norm of the reference.
        product: scalar product of both.
        large: elements of the reference that aren't small beside the others of this tensor.
        lost: how many of those are exactly zero in the candidate.
        gained: the other way round.
        gone: squared norm of the reference where the candidate is exactly zero.
        bad: elements of the candidate that aren't finite.
        reference_bad: the same of the reference.
        equal: the same bits, and the same format.
        floor: an absolute squared norm below which a difference says nothing.
    """

    count: int
    difference: float
    reference: float
    product: float
    large: int
    lost: int
    gained: int
    gone: float
    bad: int
    reference_bad: int
    equal: bool
    floor: float = 0.0

    @property
    def projection(self) -> float:
        """The candidate along the reference: 1 when nothing is lost or scaled."""
        return self.product / self.reference if self.reference else 1.0


def deviation(
    candidate: torch.Tensor | None, reference: torch.Tensor | None, floor: float = 0.0
) -> Deviation:
    """Compare two tensors of one shape; None counts as zero (no gradient)."""
    if candidate is None and reference is None:
        return Deviation(0, 0.0, 0.0, 0.0, 0, 0, 0, 0.0, 0, 0, True, floor)
    present = candidate if candidate is not None else reference
    assert present is not None
    a = _flat(candidate if candidate is not None else torch.zeros_like(present))
    b = _flat(reference if reference is not None else torch.zeros_like(present))
    if a.shape != b.shape:
        return Deviation(b.numel(), math.inf, 1.0, 0.0, 0, 0, 0, 0.0, 0, 0, False, floor)
    equal = candidate is not None and reference is not None and same_bits(candidate, reference)
    if not b.numel():
        return Deviation(0, 0.0, 0.0, 0.0, 0, 0, 0, 0.0, 0, 0, equal, floor)
    norm = torch.linalg.vector_norm(b, dtype=torch.float64) if b.is_floating_point() else None
    small = _SMALL**2 * (b.double().square().mean() if norm is None else norm**2 / b.numel())
    sums, bad, reference_bad = _total(a, b, small)
    difference, reference_norm, product, large, gone, lost, gained = sums
    return Deviation(
        count=b.numel(),
        difference=difference,
        reference=reference_norm,
        product=product,
        large=int(large),
        lost=int(lost),
        gained=int(gained),
        gone=gone,
        bad=bad,
        reference_bad=reference_bad,
        equal=equal,
        floor=floor,
    )


def _sums(candidate: torch.Tensor, reference: torch.Tensor, small: torch.Tensor) -> torch.Tensor:
    """Seven sums over two finite vectors: first the squared norms, then what turned to zeros."""
    c, r = candidate.double(), reference.double()
    change, square = c - r, r * r
    large = (square >= small) & (r != 0)
    figures = [change.dot(change), r.dot(r), c.dot(r), torch.count_nonzero(large).double()]
    # Most gradients hold no zero; only a device would have to be waited for to know.
    if c.device.type == "cpu" and bool(c.all()) and bool(r.all()):
        return torch.stack([*figures, *[c.new_zeros(())] * 3])
    silent = c == 0
    return torch.stack(
        [
            *figures,
            square.dot(silent.double()),
            torch.count_nonzero(large & silent).double(),
            torch.count_nonzero((r == 0) & ~silent & (c * c >= small)).double(),
        ]
    )


def _total(
    candidate: torch.Tensor, reference: torch.Tensor, small: torch.Tensor
) -> tuple[list[float], int, int]:
    """The sums of `_sums` over all, and how many elements of either aren't finite."""
    chunk = _CHUNK_CPU if candidate.device.type == "cpu" else _CHUNK
    pairs = zip(torch.split(candidate, chunk), torch.split(reference, chunk), strict=True)
    sums = torch.stack([_sums(a, b, small) for a, b in pairs]).sum(0).tolist()
    if all(math.isfinite(value) for value in sums):
        return sums, 0, 0
    # A single inf or nan shows in the sums, so that only then it has to be looked for.
    bad, reference_bad = ~torch.isfinite(candidate), ~torch.isfinite(reference)
    counts = int(bad.sum()), int(reference_bad.sum())
    wrong = bad | reference_bad
    if not any(counts):  # float64 whose squares are too large
        return sums, 0, 0
    zero = (candidate.masked_fill(wrong, 0.0), reference.masked_fill(wrong, 0.0))
    return _total(*zero, small)[0], *counts


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same bits in the same format."""
    if a.dtype != b.dtype or a.shape != b.shape or a.layout != b.layout:
        return False
    if a.layout != torch.strided:
        a, b = a.coalesce(), b.coalesce()
        return same_bits(a.indices(), b.indices()) and same_bits(a.values(), b.values())
    a, b = (torch.view_as_real(t) if t.is_complex() else t for t in (a, b))
    kind = _INTEGERS[a.element_size()]
    flat_a, flat_b = a.detach().reshape(-1), b.detach().reshape(-1)
    return torch.equal(flat_a.view(kind), flat_b.view(kind))


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.device.type == "mps":  # knows no double precision
        tensor = tensor.cpu()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.reshape(-1)


def compare(
    candidate: dict[str, torch.Tensor | None] | dict[str, torch.Tensor],
    reference: dict[str, torch.Tensor | None] | dict[str, torch.Tensor],
    floors: dict[str, float] | None = None,
) -> dict[str, Deviation]:
    """Compare by name; a name on one side only counts as zero on the other."""
    names = dict.fromkeys([*reference, *candidate])
    floors = floors or {}
    return {n: deviation(candidate.get(n), reference.get(n), floors.get(n, 0.0)) for n in names}


def overall(deviations: dict[str, Deviation]) -> Deviation:
    """All tensors taken as one long vector."""
    parts = list(deviations.values())
    return Deviation(
        count=sum(d.count for d in parts),
        difference=sum(d.difference for d in parts),
        reference=sum(d.reference for d in parts),
        product=sum(d.product for d in parts),
        large=sum(d.large for d in parts),
        lost=sum(d.lost for d in parts),
        gained=sum(d.gained for d in parts),
        gone=sum(d.gone for d in parts),
        bad=sum(d.bad for d in parts),
        reference_bad=sum(d.reference_bad for d in parts),
        equal=all(d.equal for d in parts),
        floor=sum(d.floor for d in parts),
    )
