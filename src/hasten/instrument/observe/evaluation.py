"""Observes passes over a loader that train nothing: validation, however it is written.

A pass counts when batches were read, a root was called for them, and no backward pass, step or
`torch.autograd.grad` came before the end. Facts: "passes", the last of them (see `Pass.facts`),
and "eval_seen": whether a root was ever called in evaluation mode.
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch

from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.gradients import compiled
from hasten.instrument.observe.log import Log
from hasten.instrument.observe.places import place, users_frame

_KEPT = 8
_NODES = 20_000  # of a graph whose size is added up
_At = tuple[str, int, str]


@dataclass(eq=False)
class Pass:
    """One pass over a loader.

    Attributes:
        calls: of roots after a batch; with_graph, training_mode: how many of these.
        kept: bytes that the graph of a call held.
        trained: backward passes and steps.
        at: where a root was first called.
        moved: batch-norm layers whose running statistics it changed.
    """

    dataset: weakref.ref[Any]
    batches: int = 0
    calls: int = 0
    with_graph: int = 0
    training_mode: int = 0
    kept: int = 0
    trained: int = 0
    ended: bool = False
    at: _At | None = None
    graph_at: _At | None = None
    mode_at: _At | None = None
    affected: dict[str, int] = field(default_factory=dict)  # kinds of modules: how many
    counters: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    moved: int = 0

    def facts(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "batches": self.batches,
            "calls": self.calls,
            "with_graph": self.with_graph,
            "training_mode": self.training_mode,
            "kept": self.kept,
            "moved": self.moved,
            "affected": self.affected,
            "place": _plain(self.at),
            "graph_place": _plain(self.graph_at),
            "mode_place": _plain(self.mode_at),
        }


class Evaluation(Observer):
    """Passes without training."""

    name: ClassVar[str] = "evaluation"

    def __init__(self) -> None:
        self._passes: dict[int, Pass] = {}
        self._current: Pass | None = None
        self._done: list[Pass] = []
        self._trained_on: weakref.WeakSet[Any] = weakref.WeakSet()
        self._eval_seen = False

    def start(self, log: Log) -> None:
        """A gradient that is asked for directly is a use of the graph, too."""
        grad, observer = torch.autograd.grad, self

        def asked(*args: Any, **kwargs: Any) -> Any:
            observer._trains()
            return grad(*args, **kwargs)

        log.replace(torch.autograd, "grad", asked)

    # --- passes -----------------------------------------------------------------------------

    def epoch_started(self, log: Log, loader: Any, training: bool) -> None:
        """A pass begins, and an earlier one of the same loader is over."""
        self._fold(self._passes.pop(id(loader), None))
        try:
            self._passes[id(loader)] = Pass(weakref.ref(loader.dataset))
        except TypeError:  # a list as a dataset: nothing refers to it weakly
            self._passes[id(loader)] = Pass(weakref.ref(loader))

    def fetched(self, log: Log, loader: Any, batch: Any, training: bool) -> None:
        """What follows belongs to this pass."""
        self._current = self._passes.get(id(loader))
        if self._current is not None:
            self._current.batches += 1

    def epoch_ended(self, log: Log, loader: Any, training: bool) -> None:
        """A pass is complete."""
        over = self._passes.pop(id(loader), None)
        if over is not None:
            over.ended = True
            self._fold(over)

    def _fold(self, over: Pass | None) -> None:
        if over is None or not over.ended or over.trained or over.batches < 2:
            return
        if over.calls >= over.batches:
            pairs = over.counters.values()
            over.moved = sum(bool((before != now).any()) for before, now in pairs)
            over.counters = {}
            self._done = [*self._done, over][-_KEPT:]

    def _trains(self) -> None:
        if self._current is not None:
            self._current.trained += 1
            if (dataset := self._current.dataset()) is not None:
                self._trained_on.add(dataset)

    def before_backward(self, log: Log, tensors: Any) -> None:
        """It trains."""
        self._trains()

    def before_step(self, log: Log, optimizer: Any) -> None:
        """It trains."""
        self._trains()

    # --- calls ------------------------------------------------------------------------------

    def root_entered(self, log: Log, module: Any, training: bool) -> None:
        """A call: with a graph? in which mode?"""
        self._eval_seen = self._eval_seen or not module.training
        current = self._current
        if current is None or current.trained:
            return
        current.calls += 1
        if current.at is None:
            current.at = users_frame(2)
        if torch.is_grad_enabled() and not compiled():
            self._see_result(current, module)
        if module.training and not _averaging():
            current.training_mode += 1
            if current.mode_at is None:
                current.mode_at = users_frame(2)
                current.affected, current.counters = _affected(module)

    def _see_result(self, current: Pass, module: Any) -> None:
        """Look at what this call returns, by a hook for this call only."""
        at = users_frame(3)

        def returned(_: Any, args: Any, output: Any) -> None:
            handle.remove()
            graph = _graph_of(output)
            if graph is None:
                return
            current.with_graph += 1
            if current.graph_at is None:
                current.graph_at = at
            elif not current.kept:  # the second batch, so that training has its graph freed
                current.kept = _bytes_held(graph, module)

        handle = module.register_forward_hook(returned)

    def finish(self, log: Log, conductor: Any) -> dict[str, Any]:
        """The last passes that trained nothing and were complete."""
        passes = []
        for over in self._done:
            dataset = over.dataset()
            facts = over.facts()
            facts["own_data"] = dataset is not None and dataset not in self._trained_on
            passes.append(facts)
        return {"passes": passes, "eval_seen": self._eval_seen} if passes else {}


def _plain(at: _At | None) -> dict[str, Any] | None:
    return asdict(place(*at)) if at is not None else None


def _averaging() -> bool:
    """Whether weights are being averaged: batch norm is then estimated anew, on purpose."""
    frame = sys._getframe(2)
    for _ in range(12):
        if "update_bn" in frame.f_code.co_name or frame.f_code.co_filename.endswith("swa_utils.py"):
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def _affected(module: Any) -> tuple[dict[str, int], dict[int, tuple[torch.Tensor, torch.Tensor]]]:
    """Modules that do something else in training, and the counters of running statistics."""
    from torch.nn.modules.batchnorm import _NormBase
    from torch.nn.modules.dropout import _DropoutNd

    kinds: dict[str, int] = {}
    counters: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for part in module.modules():
        drops = isinstance(part, _DropoutNd) and part.training and part.p > 0
        counter = getattr(part, "num_batches_tracked", None)
        tracks = isinstance(part, _NormBase) and part.training and counter is not None
        if drops or tracks:
            kinds[type(part).__name__] = kinds.get(type(part).__name__, 0) + 1
        if tracks and isinstance(counter, torch.Tensor):
            counters[id(part)] = counter.clone(), counter
    return kinds, counters


def _graph_of(output: Any) -> Any | None:
    """The node that made the first tensor of a result with a graph."""
    if isinstance(output, torch.Tensor):
        return output.grad_fn
    values = output.values() if isinstance(output, dict) else output
    if isinstance(values, (list, tuple)) or isinstance(output, dict):
        for value in values:
            if (found := _graph_of(value)) is not None:
                return found
    return None


def _bytes_held(start: Any, module: Any) -> int:
    """Bytes of tensors that a graph holds for a backward pass, parameters left out."""
    known = {t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers())}
    total, waiting, seen = 0, [start], {start}
    while waiting and len(seen) < _NODES:
        node = waiting.pop()
        for name in dir(type(node)):
            if name.startswith("_saved_"):
                total += _new_bytes(_saved(node, name), known)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return total


def _saved(node: Any, name: str) -> Any:
    try:
        return getattr(node, name)
    except (RuntimeError, AttributeError):  # freed already, or nothing saved
        return None


def _new_bytes(value: Any, known: set[int]) -> int:
    if isinstance(value, (list, tuple)):
        return sum(_new_bytes(item, known) for item in value)
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return 0
    storage = value.untyped_storage()
    if storage.data_ptr() in known:
        return 0
    known.add(storage.data_ptr())
    return storage.nbytes()
