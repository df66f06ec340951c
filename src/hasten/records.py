"""What parent and child say to each other, and what they agree to call it.

The classes hold plain data only, so that the parent never needs torch; `protocol` sends them.
Times are in seconds unless a name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hasten.diagnosis import Course, Timeline
from hasten.verification import Verification

#: The value of one optimisation in a setting: anything that JSON and TOML can both hold.
Value = Any

#: Values of optimisations by name. A name that is absent means: as the script has it.
Setting = dict[str, Value]

#: What each phase of an iteration is called, in the order in which they are shown.
PHASES = ("data", "forward", "backward", "optimizer", "other")


# --- facts about the script ------------------------------------------------------------------


@dataclass(frozen=True)
class ItemFacts:
    """What keeping the items of a dataset would take and give, by a sample of them."""

    refused: str  # why they can't be kept; empty: they can
    keep: str = ""  # what would be kept of an item
    item_bytes: float = 0.0
    total_bytes: float = 0.0
    seconds: float = 0.0  # to make an item as the script does
    kept_seconds: float = 0.0  # to make it from what was kept
    persistent: bool = False  # they may outlive the process
    room: int = 0  # bytes of memory that may be used


@dataclass(frozen=True)
class LoaderFacts:
    """The training loader as the script built it."""

    kind: str  # "map" or "iterable"
    dataset: str  # class name
    batch_size: int | None
    length: int | None  # batches an epoch, None where there is no len()
    workers: int
    prefetch: int | None
    persistent: bool
    shuffled: bool
    collate: str
    sampler: str
    start_method: str | None
    owned: bool  # False: its batches can be watched, but its index stream isn't ours
    not_owned_because: str | None = None
    dataset_items: int | None = None
    samples_seen: int = 0
    pinned: bool = False
    items: ItemFacts | None = None  # None: data costs too little to have looked
    one_by_one: str = ""  # why items can't be fetched a batch at a time; empty: they can

    @property
    def in_flight(self) -> int:
        """Batches that workers have ready or in work at most."""
        return self.workers * (self.prefetch or 2)


@dataclass(frozen=True)
class RootFacts:
    """An outermost module whose parameters an optimizer owns."""

    name: str  # class name
    parameters: int  # number of elements
    tensors: int
    dtypes: tuple[str, ...]
    device: str
    calls: float  # an iteration, with gradients
    shapes_vary: bool
    own_compile: bool
    own_autocast: str | None  # dtype, when calls arrive inside the script's autocast
    modules: int = 1
    convolutions: int = 0  # weights of two-dimensional convolutions
    channels_last: int = 0  # those that lie in channels_last already


@dataclass(frozen=True)
class OptimizerFacts:
    """One optimizer as the script built it."""

    name: str  # class name
    module: str
    groups: int
    tensors: int
    elements: int
    foreach: bool | None
    fused: bool | None
    closure: bool
    steps: float  # an iteration
    sparse: bool = False
    known: bool = True  # one of torch.optim's own classes, not a subclass
    supports_fused: bool = False  # tried on clones
    compilable: str = ""  # why its step can't be compiled; empty: it can


@dataclass(frozen=True)
class Profile:
    """What watching has shown: the loop, and where an iteration's time goes."""

    torch: str
    device: str  # "cpu", "cuda", ... : where the roots' parameters are
    border: str  # "loader": an iteration starts with a batch; "step": with an optimizer step
    iteration_seconds: tuple[float, ...]  # of the watched, valid iterations
    phases: dict[str, float]  # mean seconds an iteration, keys PHASES
    loader: LoaderFacts | None
    roots: tuple[RootFacts, ...]
    optimizers: tuple[OptimizerFacts, ...]
    threads: int  # torch.get_num_threads()
    own_scaler: bool = False
    other_loaders: int = 0
    iterations_per_step: float = 1.0  # above 1: the script accumulates gradients
    iterations_per_epoch: int | None = None
    loss: float | None = None
    notes: tuple[str, ...] = ()
    zero_fills: float = 0.0  # calls an iteration that fill gradients with zeros
    untouched: str = ""  # a parameter that some steps find with zeros that nothing was added to
    debug: tuple[str, ...] = ()  # debugging aids that are on: "anomaly", "profiler", "gradcheck"
    denormals: float = 0.0  # part of parameters, gradients and state; 0 on accelerators
    float32_precision: str = "highest"  # of products; "mixed": the script has set parts of it
    cudnn_benchmark: bool = False
    own_compile: bool = False  # the script compiles something: a model, or a function round it
    timeline: Timeline | None = None  # typical iterations, phase by phase

    @property
    def iteration(self) -> float:
        """Mean seconds of an iteration."""
        return sum(self.iteration_seconds) / max(1, len(self.iteration_seconds))


# --- results -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tried:
    """One candidate and what became of it. Ratios above 1 are faster than the baseline."""

    name: str  # an optimisation, or several joined by " + "
    value: Value
    ratio: float | None
    low: float | None
    high: float | None
    verdict: str  # a statistics.Verdict, or "refused", "failed", "not applicable"
    numerics: str  # exact, rounding, statistics
    reason: str = ""  # why refused, failed or not applicable
    payback_iterations: int | None = None  # until the compile time is won back
    pairs: int = 0
    seconds: float = 0.0
    compile_seconds: float = 0.0
    against: str = "baseline"  # or the name of the setting that it was compared with


@dataclass(frozen=True)
class Ratio:
    """How many times faster, with its confidence interval."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Outcome:
    """All that `hasten tune` found out."""

    environment: dict[str, Any]
    profile: Profile
    tried: tuple[Tried, ...]
    setting: Setting  # what won; empty: nothing is measurably faster
    confirmed: Ratio | None  # end to end, by two processes in turns
    confirmed_verdict: str
    seconds: float  # of measuring
    compile_seconds: float
    iterations: int  # of the script's, over all children
    interrupted: bool = False
    shield: str = ""  # one line: what was protected, and what was not
    notes: tuple[str, ...] = ()
    data_free: Ratio | None = None  # the ceiling: with data free, this much faster
    gain: float | None = None  # of the setting, as the search has measured it
    proof_seconds: float = 0.0  # of `seconds`
    courses: tuple[Course, ...] = ()  # of the confirmation: the script as it is, and the plan
    counted: int = 0  # iterations over which the confirmation has compared counts
    broken: tuple[str, ...] = ()  # what of them the plan changes, a line each
    verified: Verification | None = None  # losses and counts from several seeds


# --- parent to child -------------------------------------------------------------------------


@dataclass(frozen=True)
class Watch:
    """Let `iterations` valid iterations pass as the script has them, then send a Profile."""

    iterations: int
    seconds: float  # ... or until this much time has passed, whichever is first


@dataclass(frozen=True)
class RunBlock:
    """Run `iterations` valid iterations under `setting` after `warmup` uncounted ones."""

    setting: Setting
    iterations: int
    warmup: int = 1
    hold_data: bool = False  # yield the same recorded batch again: the data-free ceiling
    seconds: float | None = None  # a block that takes longer is cut short
    reliefs: tuple[str, ...] = ()  # what a diagnosis takes away from the script meanwhile


@dataclass(frozen=True)
class Prove:
    """Check on the script's own model what `setting` changes against `reference`."""

    name: str
    setting: Setting
    reference: Setting = field(default_factory=dict)
    seconds: float = 6.0  # for replays that only narrow a bound


@dataclass(frozen=True)
class Observe:
    """Let the script run as it is and tell what happens where (children of a diagnosis only).

    It ends after `iterations` and two epoch borders, or after `seconds`, with its hooks taken out.
    """

    iterations: int
    seconds: float
    least: int = 3
    most: int = 0  # of any kind; 0: as many as it takes


@dataclass(frozen=True)
class Examine:
    """Measure the loader by itself, arithmetic and memory, within about `seconds`."""

    seconds: float
    arithmetic: bool = True  # also count operations, which a script may not bear


@dataclass(frozen=True)
class Stop:
    """End at once: nothing of the script may run any more."""


# --- child to parent -------------------------------------------------------------------------


@dataclass(frozen=True)
class Hello:
    """The child runs; torch is not there yet."""

    pid: int


@dataclass(frozen=True)
class Note:
    """Something that should be known: a failure that was stepped round, a call not covered."""

    text: str


@dataclass(frozen=True)
class BlockDone:
    """The answer to RunBlock.

    `seconds` is the total of the counted iterations and holds no compile time; `setup_seconds`
    is what the switch itself took (pool start, compilation) and `compile_seconds` the part of it
    that was compilation.
    """

    setting: Setting
    iterations: int
    seconds: float
    processor_seconds: float
    void: int
    phases: dict[str, float]
    setup_seconds: float = 0.0
    compile_seconds: float = 0.0
    pool_seconds: float | None = None
    losses_finite: bool = True
    loss: float | None = None
    no_effect: dict[str, str] = field(default_factory=dict)  # name -> why it did nothing
    total_iterations: int = 0  # since the child's start
    peak_memory: int = 0  # bytes, resident
    fill_iterations: int = 0  # until kept items are there: an epoch, which gains nothing yet
    fill_seconds: float = 0.0  # that keeping them adds to it
    losses: tuple[tuple[int, float], ...] = ()  # iteration since the start, mean loss up to it


@dataclass(frozen=True)
class Proof:
    """The answer to Prove: does `name` keep what its class promises on this model?"""

    name: str
    numerics: str  # the class that it turned out to have: exact, rounding, statistics
    passed: bool
    figure: float  # worst relative error seen
    bound: float
    worst: str  # the parameter (or batch entry) with the worst error
    reason: str  # one line for the user
    seconds: float = 0.0
    compile_seconds: float = 0.0  # of them


@dataclass(frozen=True)
class Failed:
    """The script raised, or hasten could not do what it was told, with this setting in force."""

    kind: str  # "exception", "memory", "internal"
    message: str
    traceback: str
    setting: Setting
    iterations: int


@dataclass(frozen=True)
class Ended:
    """The script has come to its end by itself."""

    iterations: int
    backwards: int
    steps: int
    torch_imported: bool = True
    status: int = 0
