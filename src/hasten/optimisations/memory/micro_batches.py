"""Compute each batch in parts, so that less of it is in memory at a time.

What it does
    Every training call of a root module is made in parts of the batch. The outputs are put
    together again, so that the script's own loss sees the whole batch, and each part is computed
    again in the backward pass, so that only one part's intermediate results are alive at a time.
    On the CPU glibc's allocator is told to give large tensors back as soon as they are freed.

Why it is faster
    It isn't: it computes the forward pass twice. It makes a batch fit that memory does not allow,
    without another batch size, learning rate or schedule.

When it helps
    Intermediate results take most of the memory. Models with batch norm in training mode, whose
    outputs belong to the batch as a whole (a loss), or that count their calls can't be split.

Numerics
    Class `rounding`: optimizer, clipping, logs and losses weighted by tokens see exactly the batch
    they always saw; only sums over the batch are rounded in another order. With dropout the parts
    draw other random numbers than the whole, which is `statistics`.

Example
    outputs = [checkpoint(model, part, use_reentrant=False) for part in batch.chunk(4)]
    loss = loss_of(torch.cat(outputs), target)

Source
    Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016); PyTorch,
    "torch.utils.checkpoint".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.records import Profile, Value

if TYPE_CHECKING:
    from hasten.environment import Environment

_MOST = 1024


class MicroBatches(Optimisation):
    """Calls of roots in parts of the batch."""

    name: ClassVar[str] = "micro-batches"
    numerics: ClassVar[Numerics] = Numerics.ROUNDING
    order: ClassVar[int] = 95
    needs: ClassVar[str] = "roots"
    one_by_one: ClassVar[bool] = True
    searched: ClassVar[bool] = False

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Models that are called with a batch of known size."""
        if not profile.roots:
            return Applies(reason="no module is called through __call__ with gradients on")
        size = profile.loader.batch_size if profile.loader is not None else None
        if size is not None and size < 2:
            return Applies(reason="its batches hold one sample")
        return Applies(tuple(parts for parts in (2, 4, 8, 16) if size is None or parts <= size))

    def enable(self, seams: Seams, value: Value) -> None:
        """Calls in parts from the next one on."""
        for root in seams.roots:
            root.splitting.set(value)

    def disable(self, seams: Seams) -> None:
        """Calls as the script makes them."""
        for root in seams.roots:
            root.splitting.set(None)

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """Calls of some root were made in parts."""
        if any(root.splitting.calls for root in seams.roots):
            return None
        troubles = [root.splitting.trouble for root in seams.roots if root.splitting.trouble]
        return troubles[0] if troubles else "no root was called"

    def check(self, value: Value) -> None:
        """A number of parts."""
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not 2 <= value <= _MOST:
            raise ValueError(f"a number of parts from 2 to {_MOST}")
