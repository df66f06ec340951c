"""What the units have in common that change where a batch lies before the script gets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.records import LoaderFacts, Profile, Value

if TYPE_CHECKING:
    from hasten.environment import Environment


class Delivered(Optimisation):
    """Batches of a DataLoader on their way to a CUDA device."""

    numerics: ClassVar[Numerics] = Numerics.EXACT
    likely: ClassVar[bool] = True
    warmup: ClassVar[int] = 2
    needs: ClassVar[str] = "loader"
    place: ClassVar[str]  # "device" or "pinned", as `DeliverySeam.set` has it
    idle: ClassVar[str]  # what to say where no tensor was moved there

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Training on a CUDA device from a DataLoader."""
        if profile.loader is None:
            return Applies(reason="the script trains without a DataLoader")
        if profile.device != "cuda":
            return Applies(
                reason=f"batches aren't copied to a GPU: training is on {profile.device}"
            )
        reason = self.needless(profile.loader)
        return Applies(reason=reason) if reason else Applies(values=(True,))

    def needless(self, loader: LoaderFacts) -> str:
        """Why this loader has nothing to gain, or an empty string."""
        return ""

    def enable(self, seams: Seams, value: Value) -> None:
        """From the next batch on."""
        if seams.loader is not None:
            seams.loader.delivery.set(self.place, seams.device)

    def disable(self, seams: Seams) -> None:
        """Batches as they come."""
        if seams.loader is not None:
            seams.loader.delivery.set(None, seams.device)

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """Some tensor was moved."""
        moved = seams.loader.delivery.moved if seams.loader is not None else 0
        return None if moved else self.idle
