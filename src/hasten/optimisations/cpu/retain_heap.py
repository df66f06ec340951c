"""Keep freed memory in the process instead of giving it back to the system in every iteration.

What it does
    Tells glibc's allocator (`mallopt`) not to return freed memory at the top of the heap, and not
    to map large blocks one by one. Everything freed is used again by the next iteration.

Why it is faster
    An iteration frees its activations and allocates them again. Memory that went back to the
    system in between has to be mapped and zeroed anew, page by page: tens of thousands of page
    faults an iteration were seen, a fifth of its time.

When it helps
    Training on the CPU with activations of megabytes, more so the faster the rest has become.
    The process keeps its peak memory for as long as it runs.

Numerics
    Class `exact`: only addresses change.

Example
    MALLOC_TOP_PAD_=1073741824 MALLOC_MMAP_MAX_=0 python train.py

Source
    glibc manual, "Malloc Tunable Parameters"; PyTorch performance tuning guide, "Switch memory
    allocator".
"""

from __future__ import annotations

import ctypes
import platform
from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.records import Profile, Value

if TYPE_CHECKING:
    from hasten.environment import Environment

# Parameters of mallopt(3), which takes ints.
_TOP_PAD, _MMAP_MAX = -2, -4
# A trim leaves the pad in place, so that a large one keeps an iteration's memory. The thresholds
# are not touched: glibc has grown them to fit what the script frees, and nothing could put them
# back as they were, so that the comparison would be with a process that no longer exists.
_KEEP = {_TOP_PAD: 1 << 30, _MMAP_MAX: 0}
_USUAL = {_TOP_PAD: 128 << 10, _MMAP_MAX: 65_536}  # glibc's defaults


class RetainHeap(Optimisation):
    """glibc keeps what an iteration has freed for the next one."""

    name: ClassVar[str] = "retain-heap"
    numerics: ClassVar[Numerics] = Numerics.EXACT
    # What the heap looks like depends on what was in force before: a process that has kept its
    # memory once never faults again as often as a fresh one does.
    lingers: ClassVar[bool] = True
    order: ClassVar[int] = 12
    likely: ClassVar[bool] = True

    def __init__(self) -> None:
        self._accepted = False

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """Training on the CPU with glibc's allocator."""
        if profile.device != "cpu":
            return Applies(reason=f"tensors are on {profile.device}, which has its own allocator")
        if platform.libc_ver()[0] != "glibc":
            return Applies(reason="the C library is not glibc")
        return Applies(values=(True,))

    def enable(self, seams: Seams, value: Value) -> None:
        """Freed memory stays from now on."""
        self._accepted = _set(_KEEP)

    def disable(self, seams: Seams) -> None:
        """Freed memory goes back as it usually does."""
        _set(_USUAL)

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """The allocator took the parameters."""
        return None if self._accepted else "the allocator in use doesn't know mallopt"


def _set(parameters: dict[int, int]) -> bool:
    """Whether glibc accepted every parameter."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all([mallopt(name, n) == 1 for name, n in parameters.items()])
