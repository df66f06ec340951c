"""Compute repeated blocks again in the backward pass instead of keeping what they computed.

What it does
    The repeated blocks of a model, such as the layers of a transformer or the stages of a ResNet,
    keep only their inputs in the forward pass. In the backward pass each block is computed once
    more, just before its gradients are. What was drawn at random is drawn again, and running
    statistics of batch norm move once.

Why it is faster
    It isn't: it computes most of the forward pass twice. The memory that it frees can hold a
    larger batch, which may be faster in all.

When it helps
    Deep models whose intermediate results take most of the memory. A model that is no sequence of
    blocks has nothing to recompute.

Numerics
    Class `exact`: the same operations on the same numbers. Blocks that change their input in
    place, or that count their calls, are left as they are.

Example
    for block in self.blocks:
        x = checkpoint(block, x, use_reentrant=False)

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

_MOST = 64


class CheckpointBlocks(Optimisation):
    """Repeated blocks of roots, recomputed."""

    name: ClassVar[str] = "checkpoint-blocks"
    numerics: ClassVar[Numerics] = Numerics.EXACT
    order: ClassVar[int] = 94
    warmup: ClassVar[int] = 2
    needs: ClassVar[str] = "roots"
    excludes: ClassVar[tuple[str, ...]] = ("compile", "cuda-graphs")
    one_by_one: ClassVar[bool] = True
    searched: ClassVar[bool] = False

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Models that run uncompiled; whether they have such blocks shows when it is tried."""
        if not profile.roots:
            return Applies(reason="no module is called through __call__ with gradients on")
        if profile.own_compile or any(root.own_compile for root in profile.roots):
            return Applies(reason="the script compiles its model, and that decides what is kept")
        return Applies((2, 1))

    def enable(self, seams: Seams, value: Value) -> None:
        """Recompute from the next call on."""
        for root in seams.roots:
            root.blocks.set(value)

    def disable(self, seams: Seams) -> None:
        """Keep what blocks compute."""
        for root in seams.roots:
            root.blocks.set(None)

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """Some block was called to be recomputed."""
        if any(root.blocks.calls for root in seams.roots):
            return None
        troubles = [root.blocks.trouble for root in seams.roots if root.blocks.trouble]
        if troubles:
            return troubles[0]
        if not any(root.blocks.found for root in seams.roots):
            return "the model has no repeated blocks in a ModuleList or Sequential"
        return "no block was called"

    def check(self, value: Value) -> None:
        """1: each block, 2: each second one, and so on."""
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not 1 <= value <= _MOST:
            raise ValueError(f"a number from 1 (each block) to {_MOST}")
