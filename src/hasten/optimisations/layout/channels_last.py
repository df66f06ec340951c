"""Lay images and convolution weights out in channels_last.

What it does
    The weights of two-dimensional convolutions, the images that a root module is given, gradients
    and optimizer state are laid out with channels innermost (NHWC). Images that leave the module
    come back in rows, as the code that follows expects them.

Why it is faster
    Convolutions read all channels of a pixel at once. Tensor cores and oneDNN compute in this
    layout; from rows they convert before and after.

When it helps
    Convolutional networks, most of all in reduced precision. Grouped and very narrow convolutions
    may lose.

Numerics
    Class `rounding`: the same sums in another order. Dropout fills the masks of images in memory
    order, so that these are other ones from the same seed; the proof compares with the same masks.
    A model that calls `view` on the output of a convolution raises an exception, and the candidate
    is dropped.

Example
    model = model.to(memory_format=torch.channels_last)
    images = images.to(memory_format=torch.channels_last)

Source
    PyTorch tutorials, "(beta) Channels Last Memory Format in PyTorch".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.records import Profile, Value

if TYPE_CHECKING:
    from hasten.environment import Environment


class ChannelsLast(Optimisation):
    """NHWC for every root with two-dimensional convolutions."""

    name: ClassVar[str] = "channels-last"
    numerics: ClassVar[Numerics] = Numerics.ROUNDING
    fixes: ClassVar[tuple[str, ...]] = ("compute-bound",)
    order: ClassVar[int] = 18
    warmup: ClassVar[int] = 2
    needs: ClassVar[str] = "roots"
    touches: ClassVar[str] = "both"

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Models with two-dimensional convolutions in rows."""
        if not profile.roots:
            return Applies(reason="no module is called through __call__ with gradients on")
        convolutions = sum(root.convolutions for root in profile.roots)
        if not convolutions:
            return Applies(reason="the model has no two-dimensional convolution")
        if all(root.channels_last == root.convolutions for root in profile.roots):
            return Applies(reason="the model already is in channels_last")
        return Applies(values=(True,))

    def enable(self, seams: Seams, value: Value) -> None:
        """Convert weights, then whatever belongs to them."""
        for root in seams.roots:
            root.channels_last(True)
        self._realign(seams)

    def disable(self, seams: Seams) -> None:
        """Every weight gets its own strides back."""
        for root in seams.roots:
            root.channels_last(False)
        self._realign(seams)

    @staticmethod
    def _realign(seams: Seams) -> None:
        # Fused kernels read memory in order: old strides would be silently wrong.
        for optimizer in seams.optimizers:
            optimizer.realign()

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """A root with converted weights was called."""
        if any(root.calls and root.converted for root in seams.roots):
            return None
        return "no module with convolutions was called"
