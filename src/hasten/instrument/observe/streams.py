"""Observes whether workers of a loader give the same data, or the same random numbers.

Facts: "iterable", for loaders over an IterableDataset: batches that were compared, whether every
worker gave the same ones, and the place; and "random", for the training loader over a map-style
dataset: the generators whose state was the same in two workers while items were random.
"""

from __future__ import annotations

import ast
import linecache
import os
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, ClassVar

import numpy
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.log import Log
from hasten.instrument.observe.places import is_users, place, place_of, users_frame
from hasten.instrument.seams.loader_batches import Incomparable, leaves
from hasten.instrument.seams.loader_random import random_states
from hasten.instrument.seams.loader_torch import Config, missing, quietly, shadow

_ROUNDS = 6  # batches of each worker that are compared
_DRAWS = 8  # fetches of one item in a batch
_PARTS = 2000  # objects of a dataset that are searched for generators
_TIMEOUT = 30.0  # seconds
_GENERATORS = (
    numpy.random.Generator,
    numpy.random.RandomState,
    random.Random,
    torch.Generator,
)


class Streams(Observer):
    """Samples that come twice."""

    name: ClassVar[str] = "streams"

    def __init__(self) -> None:
        self._batches: dict[int, list[str]] = {}
        self._places: dict[int, tuple[str, int, str] | None] = {}
        self._found: list[dict[str, Any]] = []
        self._done: set[int] = set()

    # --- an IterableDataset, from the batches as they come ------------------------------------

    def epoch_started(self, log: Log, loader: Any, training: bool) -> None:
        """Compare the beginning of this pass."""
        if isinstance(loader.dataset, IterableDataset) and loader.num_workers > 1:
            self._judge(loader)
            if id(loader) not in self._done:
                self._batches[id(loader)] = []
                self._places.setdefault(id(loader), users_frame(2))

    def fetched(self, log: Log, loader: Any, batch: Any, training: bool) -> None:
        """One more batch."""
        batches = self._batches.get(id(loader))
        if batches is None:
            return
        try:
            batches.append(_digest(batch))
        except Incomparable:
            self._stop(loader)
            return
        if len(batches) >= _ROUNDS * loader.num_workers:
            self._judge(loader)

    def epoch_ended(self, log: Log, loader: Any, training: bool) -> None:
        """The pass was short."""
        self._judge(loader)

    def _stop(self, loader: Any) -> None:
        self._batches.pop(id(loader), None)
        self._done.add(id(loader))

    def _judge(self, loader: Any) -> None:
        """Torch takes batches from the workers in turn, so each worker's own can be told apart."""
        batches = self._batches.pop(id(loader), None)
        workers = loader.num_workers
        if batches is None or len(batches) < 2 * workers:
            return
        rounds = len(batches) // workers
        by_worker = [batches[worker : rounds * workers : workers] for worker in range(workers)]
        self._done.add(id(loader))
        if len(set(by_worker[0])) < 2:  # one worker repeats itself: nothing can be told
            return
        own = place_of(type(loader.dataset).__iter__)
        at = self._places.get(id(loader))
        self._found.append(
            {
                "dataset": type(loader.dataset).__name__,
                "workers": workers,
                "rounds": rounds,
                "same": all(one == by_worker[0] for one in by_worker[1:]),
                "place": asdict(own) if own else asdict(place(*at)) if at else None,
            }
        )

    def finish(self, log: Log, conductor: Any) -> dict[str, Any]:
        """Try the training loader's items in two workers of a pool of our own."""
        facts: dict[str, Any] = {"iterable": self._found} if self._found else {}
        loader = conductor.loop.loader if conductor.loop is not None else None
        if loader is None or loader.num_workers < 2 or missing() is not None:
            return facts
        if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__len__"):
            return facts
        try:
            facts["random"] = same_in_workers(loader)
        except Exception as error:  # items that can't be fetched by number, workers that die
            facts["unknown"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return facts


# --- a map-style dataset, in workers of our own -----------------------------------------------


class Looking:
    """Stands in for collating, in a worker: digests of the items, and of every generator."""

    def __call__(self, items: list[Any]) -> tuple[list[str], dict[str, str]]:
        """Digests of equal draws of one item, and of the states of the generators after them."""
        info = get_worker_info()
        dataset = info.dataset if info is not None else None
        return [_digest(item) for item in items], _states(dataset)


def same_in_workers(loader: DataLoader[Any]) -> list[dict[str, Any]]:
    """The generators that give two workers of this loader the same random numbers.

    One item is fetched again and again by each of two workers. Only when its values change from
    draw to draw, the workers' draws are equal, and a generator moved in both from the same state
    to the same state, is it named.

    Args:
        loader: of the script, with a map-style dataset; its own workers aren't touched.
    """
    copy = shadow(loader, Config(2, 2, False), None, torch.Generator().manual_seed(os.getpid()))
    copy.__dict__.update(
        batch_size=_DRAWS,
        batch_sampler=[[0] * _DRAWS] * 4,  # two batches for each worker, in turn
        sampler=None,
        drop_last=False,
        collate_fn=Looking(),
        pin_memory=False,
        timeout=_TIMEOUT,
    )
    inner: Any = quietly(copy)
    try:
        (a, first_a), (b, first_b), (a2, second_a), (b2, second_b) = list(inner)
    finally:
        inner._shutdown_workers()
    if len(set(a)) < 2 or (a, a2) != (b, b2):
        return []
    moved = [name for name in first_a if first_a[name] != second_a.get(name)]
    same = [n for n in moved if (first_a[n], second_a[n]) == (first_b.get(n), second_b.get(n))]
    return [{"generator": name, "place": _origin(loader, name)} for name in same]


def _digest(value: Any) -> str:
    return "".join(digest for _, digest in leaves(value))


def _states(dataset: Any) -> dict[str, str]:
    """Digests of the states of the global generators, and of those that a dataset holds."""
    states = {f"the global state of {n}": repr(state) for n, state in random_states().items()}
    states |= {path: _state(generator) for path, generator, _ in _held(dataset)}
    return {name: _digest(state) for name, state in states.items()}


def _state(generator: Any) -> str:
    if isinstance(generator, numpy.random.Generator):
        return repr(generator.bit_generator.state)
    if isinstance(generator, numpy.random.RandomState):
        return repr([part.tolist() if hasattr(part, "tolist") else part
                     for part in generator.get_state()])  # fmt: skip
    if isinstance(generator, torch.Generator):
        return repr(generator.get_state().tolist())
    return repr(generator.getstate())


def _held(dataset: Any) -> Iterator[tuple[str, Any, Any]]:
    """Path, generator and owner of each generator that a dataset holds, at any depth."""
    waiting, seen = deque([("dataset", dataset)]), {id(dataset)}
    for _ in range(_PARTS):
        if not waiting:
            return
        path, owner = waiting.popleft()
        for name, item in _parts(owner):
            if isinstance(item, _GENERATORS):
                yield path + name, item, owner
            elif id(item) not in seen and not isinstance(item, (torch.Tensor, numpy.ndarray)):
                seen.add(id(item))
                waiting.append((path + name, item))


def _parts(owner: Any) -> list[tuple[str, Any]]:
    if isinstance(owner, dict):
        return [(f"[{key!r}]", item) for key, item in list(owner.items())[:100]]
    if isinstance(owner, (list, tuple)):
        return [(f"[{number}]", item) for number, item in enumerate(owner[:100])]
    return [(f".{name}", item) for name, item in getattr(owner, "__dict__", {}).items()]


def _origin(loader: DataLoader[Any], name: str) -> dict[str, Any] | None:
    """Where the user's code makes a generator, or seeds it in each worker, or draws from it."""
    for path, _, owner in _held(loader.dataset):
        if path == name and (at := _made(type(owner), name.rpartition(".")[2])) is not None:
            return asdict(at)
    seeded = place_of(loader.worker_init_fn) if loader.worker_init_fn is not None else None
    drawn = place_of(getattr(type(loader.dataset), "__getitem__", None))
    found = seeded or drawn
    return asdict(found) if found is not None else None


def _made(cls: type, attribute: str) -> Any:
    """The line in a user's class that assigns `self.attribute`."""
    init = getattr(vars(cls).get("__init__"), "__code__", None)
    if init is None or not is_users(init.co_filename):
        return None
    try:
        tree = ast.parse("".join(linecache.getlines(init.co_filename)))
    except SyntaxError:
        return None
    classes = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == cls.__name__]
    for node in (inner for outer in classes for inner in ast.walk(outer)):
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            if isinstance(target, ast.Attribute) and target.attr == attribute:
                return place(init.co_filename, target.lineno, "__init__")
    return None
