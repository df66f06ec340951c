"""Ways to make the script's own batch size fit into less memory, measured and proven."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hasten.batching import MeasureMemory, MemoryUsed
from hasten.protocol import Message
from hasten.records import Proof, Prove, Setting, Value
from hasten.tuning.memory_model import taken
from hasten.tuning.process import Child, Gone

#: What costs least time comes first.
_WAYS: tuple[tuple[str, Value], ...] = (
    ("checkpoint-blocks", 2),
    ("checkpoint-blocks", 1),
    ("micro-batches", 2),
    ("micro-batches", 4),
    ("micro-batches", 8),
    ("micro-batches", 16),
)
_ITERATIONS, _GAUGED = 8, 2
_PROOF_SECONDS = 600.0


@dataclass(frozen=True)
class Saving:
    """One way, and what came of it.

    Attributes:
        taken: bytes that count against the limit; None: it did not run.
        tensors: bytes of tensors alive at a time.
        seconds: of an iteration.
        refused: why it may not be used; empty: it is proven to train the same.
    """

    name: str
    value: Value
    taken: int | None = None
    tensors: int = 0
    seconds: float = 0.0
    refused: str = ""

    @property
    def setting(self) -> Setting:
        """What a plan holds for it."""
        return {self.name: self.value}


def savings(
    start: Callable[[Setting], Child], limit: int, timeout: float, say: Callable[[str], None]
) -> list[Saving]:
    """Try each way in a process of its own, until each kind fits or is refused.

    Args:
        start: gives a child that was started for a setting, to be closed here.
        limit: bytes that it has to fit into.
        timeout: seconds until a child's answer.
        say: is told what is going on.
    """
    found: list[Saving] = []
    for name, value in _WAYS:
        done = any(s.name == name and (s.refused or _fits(s, limit)) for s in found)
        if not done:
            say(f"to fit: {name} {value}")
            found.append(_try(start, name, value, limit, timeout))
    return found


def best(found: list[Saving], limit: int) -> Saving | None:
    """The quickest that fits and is proven; None: there is none."""
    fitting = [s for s in found if not s.refused and _fits(s, limit)]
    return min(fitting, key=lambda s: s.seconds, default=None)


def _fits(saving: Saving, limit: int) -> bool:
    return saving.taken is not None and saving.taken <= limit


def _try(
    start: Callable[[Setting], Child], name: str, value: Value, limit: int, timeout: float
) -> Saving:
    setting = {name: value}
    child: Child | None = None
    try:
        child = start(setting)
        used = child.ask(MeasureMemory(_ITERATIONS, _GAUGED, setting), timeout)
        if not isinstance(used, MemoryUsed):
            return Saving(name, value, refused=_text(used))
        idle = "; ".join(used.no_effect.values())
        saving = Saving(name, value, taken(used), used.peak, used.seconds, idle)
        if idle or not _fits(saving, limit):
            return saving
        proof = child.ask(Prove(name, setting), timeout + _PROOF_SECONDS)
        passed = isinstance(proof, Proof) and proof.passed
        refused = "" if passed else _text(proof)
        return Saving(name, value, saving.taken, used.peak, used.seconds, refused)
    except Gone as gone:
        return Saving(name, value, refused=gone.message or gone.kind)
    finally:
        if child is not None:
            child.close()


def _text(answer: Message) -> str:
    if isinstance(answer, Proof):
        return answer.reason
    return str(getattr(answer, "message", "an unexpected answer"))
