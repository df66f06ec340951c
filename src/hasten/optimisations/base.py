"""What an optimisation declares, and the seams that it may speak to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from hasten.records import BlockDone, Profile, Proof, Value

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


class SplittingSeam(Protocol):
    """Parts of a batch in which a root's calls are made."""

    def set(self, parts: int | None) -> None:
        """Make calls in this many parts; None: as the script makes them."""

    @property
    def calls(self) -> int:
        """Calls that were made in parts since the last change."""

    @property
    def trouble(self) -> str:
        """Why calls are made as a whole; empty: they aren't."""


class BlocksSeam(Protocol):
    """The repeated blocks of a root."""

    def set(self, every: int | None) -> None:
        """Recompute each block, each second one, and so on; None: as the script has it."""

    @property
    def calls(self) -> int:
        """Calls that will be recomputed, since the last change."""

    @property
    def found(self) -> int:
        """Repeated blocks."""

    @property
    def trouble(self) -> str:
        """Why blocks are called as the script has them; empty: they aren't."""


class RootSeam(Protocol):
    """A root module whose calls can be redirected."""

    name: str

    def autocast(
        self, dtype: str | None, keep: Sequence[str] = (), functions: bool = False
    ) -> None:
        """Run calls under autocast with this dtype; None: as the script has it.

        "bfloat16" or "float16"; "float32" turns off the autocast that the script is in. Modules
        that `keep` names stay in float32, and with `functions` losses, softmax, sums and the like.
        """

    def channels_last(self, on: bool) -> None:
        """Lay convolution weights and images out in channels_last; False: as the script has it."""

    @property
    def converted(self) -> int:
        """Convolution weights that lie in channels_last now."""

    def place(self, device: str | None) -> None:
        """Run calls on this device, with all that belongs to the root; None: on its own."""

    @property
    def device(self) -> str:
        """Type of the device that its parameters are on."""

    def compile(self, options: dict[str, Any] | None) -> None:
        """Run calls through torch.compile with these keyword arguments; None: eager."""

    @property
    def splitting(self) -> SplittingSeam: ...

    @property
    def blocks(self) -> BlocksSeam: ...

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

    def realign(self) -> None:
        """Give gradients and state the memory layout that their parameters have now."""

    def follow(self) -> None:
        """Take its state to the devices that the parameters are on now."""

    def compile(self, on: bool) -> None:
        """Step through torch.compile; False: as the script has it."""

    @property
    def compilations(self) -> int:
        """Steps in which something was compiled."""

    @property
    def supports_fused(self) -> bool:
        """Whether this class has a fused implementation on the device of its parameters."""

    @property
    def steps(self) -> int:
        """Steps since the last change."""


class ItemsSeam(Protocol):
    """The items of the training loader's dataset."""

    def begin(self, wanted: dict[str, Any]) -> None:
        """Keep the unchanging part of items from the next batch on.

        Args:
            wanted: "store": "memory" or "file"; "mib": how much at most, a share of what is free
                when it is absent.
        """

    def end(self) -> None:
        """Compute every item anew from the next batch on."""

    @property
    def trouble(self) -> str:
        """Why nothing is kept; empty: items are."""

    @property
    def hits(self) -> int:
        """Items that came from what was kept, since `begin`."""


class WholeSeam(Protocol):
    """Batches of the training loader, whose items are rows of tensors."""

    def set(self, on: bool) -> None:
        """Fetch the items of a batch at once from the next one on; False: one by one."""

    @property
    def trouble(self) -> str:
        """Why items are fetched one by one; empty: they aren't."""


class DeliverySeam(Protocol):
    """What becomes of a batch between the loader and the script."""

    def set(self, how: str | None, device: str) -> None:
        """Hand batches out "pinned", or on the "device"; None: as they come."""

    @property
    def moved(self) -> int:
        """Tensors that were pinned or copied since the last change."""


class LoaderSeam(Protocol):
    """The training loader."""

    @property
    def items(self) -> ItemsSeam: ...

    @property
    def whole(self) -> WholeSeam: ...

    def configure(self, workers: int, prefetch: int | None, persistent: bool) -> None:
        """Fetch with this many workers from the next batch on."""

    def reset(self) -> None:
        """Fetch as the script has it from the next batch on."""

    @property
    def delivery(self) -> DeliverySeam: ...

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch; None where it is given whole batches."""

    @property
    def workers(self) -> int:
        """Worker processes that are feeding the loop now."""


class ScalingSeam(Protocol):
    """The scale of the loss in backward passes."""

    @property
    def passes(self) -> int:
        """Scaled backward passes since the last change."""

    @property
    def trouble(self) -> str:
        """Why gradients may be wrong; empty: they aren't."""

    def set(self, on: bool) -> None:
        """Scale from the next backward pass on, or no more."""


class ClearingSeam(Protocol):
    """How gradients are cleared."""

    @property
    def filled(self) -> int:
        """Calls that wanted zeros, since the last change."""

    def to_none(self, on: bool) -> None:
        """Clear to None where the script fills with zeros; False: as the script has it."""


class DebuggingSeam(Protocol):
    """Autograd's debugging aids."""

    @property
    def off(self) -> tuple[str, ...]:
        """What is off now."""

    def switch_off(self, aids: Sequence[str]) -> None:
        """Have these off from now on ("anomaly", "profiler", "gradcheck"); none: as it was."""


class FlagsSeam(Protocol):
    """Switches of the whole process."""

    def flush_denormals(self, on: bool | None) -> None:
        """Take denormal numbers for zeros in every thread; None: as the script has it."""

    @property
    def denormals_flushed(self) -> bool:
        """Whether every intra-op thread does."""

    def set_float32_precision(self, which: str | None) -> None:
        """ "highest", "high" or "medium" for products of float32; None: as the script has it."""

    @property
    def float32_precision(self) -> str:
        """What it is now; "mixed" where the script has set parts of it."""

    def set_cudnn_benchmark(self, on: bool | None) -> None:
        """Let cuDNN try its algorithms for each new shape; None: as the script has it."""

    @property
    def cudnn_benchmark(self) -> bool:
        """Whether it does."""


class Seams(Protocol):
    """All that an optimisation can reach."""

    device: str

    @property
    def flags(self) -> FlagsSeam: ...

    @property
    def scaling(self) -> ScalingSeam: ...

    @property
    def clearing(self) -> ClearingSeam: ...

    @property
    def debugging(self) -> DebuggingSeam: ...

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
    lingers: ClassVar[bool] = False  # ... but leaves traces: compared between siblings if possible
    fixes: ClassVar[tuple[str, ...]] = ()  # names of findings
    after: ClassVar[tuple[str, ...]] = ()  # optimisations that must be enabled before this one
    excludes: ClassVar[tuple[str, ...]] = ()
    order: ClassVar[int] = 50  # when the search tries it: quick and strong ones first
    warmup: ClassVar[int] = 1  # iterations after a switch that say nothing yet
    data_path: ClassVar[bool] = False  # helps only while the loop waits for data
    moves: ClassVar[bool] = False  # to the device that its value names; only when asked for
    likely: ClassVar[bool] = False  # quick to switch, and mostly a gain where it applies
    one_by_one: ClassVar[bool] = False  # a later value only matters where those before it fail
    searched: ClassVar[bool] = True  # False: tried on request only, since it saves no time
    needs: ClassVar[str] = ""  # the seam it speaks to: "roots", "optimizers", "loader" or none
    # What is proven: "model", "optimizer", "both", "items" or "batches"; "": as `needs` says.
    touches: ClassVar[str] = ""
    compiles: ClassVar[bool] = False  # the first iterations under it compile

    @abstractmethod
    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """The values worth trying, the likeliest first, or the reason why there are none."""

    def refine(self, value: Value, block: BlockDone, profile: Profile) -> Value:
        """The value that should be kept, now that a block under `value` was measured."""
        return value

    def remedies(self, value: Value, proof: Proof) -> tuple[Value, ...]:
        """Values to try in the place of one that its proof has refused, the likeliest first."""
        return ()

    def environment(self, value: Value) -> dict[str, str]:
        """Variables that must be set before the process starts, where `live` is False."""
        return {}

    @abstractmethod
    def enable(self, seams: Seams, value: Value) -> None:
        """Put `value` into force between two iterations."""

    @abstractmethod
    def disable(self, seams: Seams) -> None:
        """Go back to what the script has."""

    @abstractmethod
    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """None when it does what it should, else why it did nothing."""

    def check(self, value: Value) -> None:
        """Refuse a value that a plan may not hold; by default a unit is just on.

        Raises:
            ValueError: with what was expected.
        """
        if value is not True:
            raise ValueError("true")
