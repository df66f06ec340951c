"""Use another number of intra-op threads.

What it does
    Sets `torch.set_num_threads`, together with the number of loader workers under the limit of
    cores that this process may really use (affinity, cgroup quota, SLURM).

Why it is faster
    More threads split large operations; but threads have to meet after each operation, and
    threads beyond the free cores wait for each other. Workers need cores as well.

When it helps
    Small models on many cores (fewer threads), large models where a launcher has set
    OMP_NUM_THREADS=1 (more threads), containers with a quota that torch does not see.

Numerics
    Class `rounding`: sums are split in another way.

Example
    torch.set_num_threads(4)

Source
    PyTorch, "CPU threading and TorchScript inference"; PyTorch performance tuning guide,
    "CPU specific optimizations".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.records import Profile, Value

if TYPE_CHECKING:
    from hasten.environment import Environment


class Threads(Optimisation):
    """The number of intra-op threads of the training process."""

    name: ClassVar[str] = "threads"
    numerics: ClassVar[Numerics] = Numerics.ROUNDING
    fixes: ClassVar[tuple[str, ...]] = ("threads-above-cores", "one-thread")
    order: ClassVar[int] = 30
    warmup: ClassVar[int] = 2

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Other thread counts up to the cores that may be used."""
        if profile.device != "cpu":
            return Applies(reason=f"the model computes on {profile.device}, not on the CPU")
        cores = environment.cores
        if cores == 1 and profile.threads == 1:
            return Applies(reason="one core can be used, and one thread is")
        wanted = {1, 2, 4, cores // 4, cores // 2, cores - 1, cores}
        counts = sorted(n for n in wanted if 1 <= n <= cores and n != profile.threads)
        # Nearest to the cores first; with workers beside it fewer may win, which combining finds.
        return Applies(values=tuple(reversed(counts[-4:])))

    def enable(self, seams: Seams, value: Value) -> None:
        """Set the count."""
        seams.threads(value)

    def disable(self, seams: Seams) -> None:
        """Back to the script's count."""
        seams.threads(None)

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """torch reports the count."""
        import torch

        now = torch.get_num_threads()
        return None if now == value else f"torch uses {now} threads"

    def check(self, value: Value) -> None:
        """A whole number from 1."""
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 4096:
            raise ValueError("a whole number of threads from 1 on")
