"""What an optimisation declares, and the seams that it may speak to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from hasten.records import BlockDone, Profile, Value

if TYPE_CHECKING:
    from hasten.environment import Environment


class Numerics(str, Enum):
    """What an optimisation may change in the numbers that training computes."""

    EXACT = "exact"  # the same bits
    ROUNDING = "rounding"  # the same maths, rounded elsewhere
    STATISTICS = "statistics"  # another random stream or batch composition


@dataclass(frozen=True)
class Applies:
    """Whether an optimisation is worth trying here: values to try, or why there are none."""

    values: tuple[Value, ...] = ()
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.values)


class RootSeam(Protocol):
    """A root module whose calls can be redirected."""

    name: str

    def autocast(self, dtype: str | None) -> None:
        """Run calls under autocast with this dtype ("bfloat16", "float16"); None: not at all."""

    def compile(self, options: dict[str, Any] | None) -> None:
        """Run calls through torch.compile with these keyword arguments; None: eager."""

    @property
    def calls(self) -> int:
        """Calls since the last change."""

    @property
    def reduced_calls(self) -> int:
        """Calls since the last change in which a module gave a result in reduced precision."""

    @property
    def graphs(self) -> tuple[int, int, int]:
        """Frames compiled, graph breaks and eager fall-backs since compilation was turned on."""


class OptimizerSeam(Protocol):
    """An optimizer whose implementation can be switched."""

    name: str

    def implementation(self, which: str | None) -> None:
        """Use "fused", "foreach" or "forloop" in every group; None: as the script has it."""

    @property
    def supports_fused(self) -> bool:
        """Whether this class has a fused implementation on the device of its parameters."""

    @property
    def steps(self) -> int:
        """Steps since the last change."""


class LoaderSeam(Protocol):
    """The training loader."""

    def configure(self, workers: int, prefetch: int | None, persistent: bool) -> None:
        """Fetch with this many workers from the next batch on."""

    def reset(self) -> None:
        """Fetch as the script has it from the next batch on."""

    @property
    def workers(self) -> int:
        """Worker processes that are feeding the loop now."""


class Seams(Protocol):
    """All that an optimisation can reach."""

    device: str

    @property
    def roots(self) -> Sequence[RootSeam]: ...

    @property
    def optimizers(self) -> Sequence[OptimizerSeam]: ...

    @property
    def loader(self) -> LoaderSeam | None: ...

    def threads(self, count: int | None) -> None:
        """Set the intra-op threads; None: as the script has them."""


class Optimisation(ABC):
    """One way to make training faster. The module's docstring is its documentation."""

    name: ClassVar[str]
    numerics: ClassVar[Numerics]
    live: ClassVar[bool] = True  # can change between two iterations of one process
    fixes: ClassVar[tuple[str, ...]] = ()  # names of findings
    after: ClassVar[tuple[str, ...]] = ()  # optimisations that must be enabled before this one
    excludes: ClassVar[tuple[str, ...]] = ()
    order: ClassVar[int] = 50  # when the search tries it: quick and strong ones first
    warmup: ClassVar[int] = 1  # iterations after a switch that say nothing yet
    data_path: ClassVar[bool] = False  # helps only while the loop waits for data
    small: ClassVar[bool] = False  # quick to switch, and often a gain too small to tell alone
    one_by_one: ClassVar[bool] = False  # a later value only matters where those before it fail
    needs: ClassVar[str] = ""  # the seam it speaks to: "roots", "optimizers", "loader" or none

    @abstractmethod
    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """The values worth trying, the likeliest first, or the reason why there are none."""

    def refine(self, value: Value, block: BlockDone, profile: Profile) -> Value:
        """The value that should be kept, now that a block under `value` was measured."""
        return value

    @abstractmethod
    def enable(self, seams: Seams, value: Value) -> None:
        """Put `value` into force between two iterations."""

    @abstractmethod
    def disable(self, seams: Seams) -> None:
        """Go back to what the script has."""

    @abstractmethod
    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """None when it does what it should, else why it did nothing."""

    @abstractmethod
    def check(self, value: Value) -> None:
        """Refuse a value that a plan may not hold.

        Raises:
            ValueError: with what was expected.
        """
