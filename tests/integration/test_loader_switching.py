"""However pools are switched, the script sees its own samples in its own order."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from test_loader_kit import Events, Noise, Numbers, owned, same, seams, seed, states
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SubsetRandomSampler

Action = tuple[str, int, int, bool]


@dataclass(frozen=True)
class Case:
    """A loader of a script, what the script does with it, and what hasten does meanwhile."""

    size: int
    batch: int | None
    kind: str
    shape: str
    workers: int
    persistent: bool
    epochs: tuple[int, ...]  # batches taken in each; more than there are: the whole epoch
    actions: tuple[Action, ...]  # one for each fetch, again from the start when used up

    def loader(self, generator: torch.Generator) -> DataLoader[Any]:
        data = Numbers(self.size, self.shape)
        options: dict[str, Any] = {"batch_size": self.batch}
        if min(self.epochs) == 99:
            # In an abandoned epoch, a sampler that was read further has drawn further from a
            # generator of the script's own, as in torch with another prefetch factor.
            options["generator"] = generator
        if self.kind == "shuffle":
            options["shuffle"] = True
        elif self.kind == "subset":
            options["sampler"] = SubsetRandomSampler(range(0, self.size, 2))
        elif self.kind == "batches":
            batches = BatchSampler(RandomSampler(data), self.batch or 2, False)
            options = {"batch_sampler": batches}
        persistent = self.persistent and self.workers > 0
        return DataLoader(data, num_workers=self.workers, persistent_workers=persistent, **options)

    def run(self) -> list[Any]:
        """What the script sees: batches, random states, and its own draws in between."""
        seed(1)
        generator = torch.Generator().manual_seed(2)
        loader = self.loader(generator)
        seen: list[Any] = []
        for count in self.epochs:
            iterator = iter(loader)
            for _ in range(count):
                try:
                    seen.append((same(next(iterator)), float(torch.rand(()))))
                except StopIteration:
                    seen.append("end")
                    break
            seen.append(states(generator))
        return seen


NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)  # it takes minutes

PLAIN = ["none", "none", "none", "configure", "configure", "reset"]


def cases(actions: list[str]) -> st.SearchStrategy[Case]:
    """Cases in which hasten does these things."""
    return st.builds(
        Case,
        size=st.integers(1, 24),
        batch=st.sampled_from([None, 1, 2, 3, 5]),
        kind=st.sampled_from(["plain", "shuffle", "subset", "batches"]),
        shape=st.sampled_from(["tensor", "dict", "tuple", "namedtuple"]),
        workers=st.sampled_from([0, 0, 1, 2]),
        persistent=st.booleans(),
        epochs=st.lists(st.sampled_from([1, 3, 99, 99]), min_size=1, max_size=3).map(tuple),
        actions=st.lists(
            st.tuples(
                st.sampled_from(actions),
                st.integers(0, 3),
                st.integers(1, 3),
                st.booleans(),
            ),
            max_size=7,
        ).map(tuple),
    )


def check(case: Case) -> None:
    plain = case.run()

    def act(loader: Any, fetch: int) -> None:
        if case.actions:
            what, workers, prefetch, persistent = case.actions[fetch % len(case.actions)]
            if what == "configure":
                owned(seam, loader).configure(workers, prefetch, persistent)
            elif what == "reset":
                owned(seam, loader).reset()
            elif what == "close":
                owned(seam, loader).close()
            elif what == "probe":
                found = owned(seam, loader).probe(workers, prefetch)
                assert (found.equal, found.random_items) == (True, False), found

    with seams(Events(act)) as seam:
        assert case.run() == plain


@given(cases(PLAIN))
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_order_and_random_states_are_the_scripts(case: Case) -> None:
    check(case)


@pytest.mark.slow
@given(cases([*PLAIN, "close", "probe"]))
@example(Case(1, None, "plain", "tensor", 1, True, (1, 1), (("close", 0, 1, False),)))
@settings(
    max_examples=150, deadline=None, phases=NO_SHRINKING, suppress_health_check=list(HealthCheck)
)
def test_order_and_random_states_are_the_scripts_often(case: Case) -> None:
    check(case)


def at(plan: dict[int, Callable[[Any], None]], holder: list[Any]) -> Events:
    """Events that do `plan[n]` before fetch n, with what the seam knows of the loader."""

    def act(loader: Any, fetch: int) -> None:
        if fetch in plan:
            plan[fetch](owned(holder[0], loader))

    return Events(act)


def test_leftovers_come_first_and_pools_are_used_again() -> None:
    log: list[Any] = []
    holder: list[Any] = []
    pids: dict[int, set[int]] = {}

    def note(o: Any) -> None:
        log.append((o.workers, o.leftovers, o.in_flight))
        pids[len(log)] = {p.pid for p in multiprocessing.active_children()}

    plan = {
        0: note,
        2: lambda o: o.configure(1, 3, False),
        3: note,
        9: lambda o: o.reset(),
        10: note,
        14: lambda o: o.configure(0, None, False),
        15: note,
        20: note,
    }
    loader: DataLoader[Any] = DataLoader(Numbers(40), 1, num_workers=2)
    with seams(at(plan, holder)) as seam:
        holder.append(seam)
        assert [int(b) for b in loader] == list(range(40))
        assert owned(seam, loader).samples == 40
        assert owned(seam, loader).pool_seconds > 0
    assert log == [(2, 0, 4), (1, 3, 3), (2, 2, 4), (0, 3, 0), (0, 0, 0)]
    assert pids[2] == pids[3] == pids[4] > pids[1]


def test_hold_yields_equal_batches_and_loses_no_sample() -> None:
    holder: list[Any] = []
    plan = {
        3: lambda o: o.hold(True),
        9: lambda o: (o.hold(False), o.configure(1, 2, False)),
        12: lambda o: o.hold(True),
        15: lambda o: o.hold(False),
    }
    loader: DataLoader[Any] = DataLoader(Numbers(30, "dict"), 2, num_workers=1)
    with seams(at(plan, holder)) as seam:
        holder.append(seam)
        seen = []
        for batch in loader:
            seen.append(batch["x"].flatten().tolist())
            batch["x"] += 1000  # must not reach the next one
            batch["name"].append("spoilt")
            assert len(batch["name"]) == 3
            del batch["deep"]
    pairs = [[2 * i, 2 * i + 1] for i in range(15)]
    assert seen[3:9] == [pairs[3]] * 6
    assert seen[12:15] == [pairs[7]] * 3
    kept = seen[:4] + seen[9:13] + seen[15:]
    assert kept == pairs


@pytest.mark.parametrize("workers", [0, 2])
def test_prefetch_alone_keeps_random_items(workers: int) -> None:
    loader: DataLoader[Any] = DataLoader(Noise(12, "torch"), 2, shuffle=True, num_workers=workers)

    def run() -> list[Any]:
        seed()
        return [same(b) for b in loader]

    plain = run()
    with seams() as seam:
        list(loader)
        owned(seam, loader).configure(workers, 3, False)
        assert run() == plain


def test_configured_persistence_ends_where_the_dataset_changes() -> None:
    data = Numbers(8, "epoch")
    loader: DataLoader[Any] = DataLoader(data, 2, num_workers=1)
    pids = []
    with seams() as seam:
        for epoch in range(5):
            data.epoch = max(0, epoch - 2)  # 0 0 0 1 2
            assert {int(b[0][1]) for b in loader} == {data.epoch}
            pids.append({p.pid for p in multiprocessing.active_children()})
            owned(seam, loader).configure(1, 2, persistent=True)
        owned(seam, loader).reset()
        assert len(list(loader)) == 4
        assert multiprocessing.active_children() == []
    assert pids[0] == set()
    assert pids[1] == pids[2] != pids[3] != pids[4]


def test_the_scripts_persistent_workers_can_be_done_without() -> None:
    data = Numbers(8, "epoch")
    loader: DataLoader[Any] = DataLoader(data, 2, num_workers=1, persistent_workers=True)
    epochs = []
    with seams() as seam:
        for epoch in range(6):
            data.epoch = epoch
            epochs.append({int(b[0][1]) for b in loader})
            if epoch == 1:
                owned(seam, loader).configure(1, 2, persistent=False)
            if epoch == 3:
                owned(seam, loader).reset()
        assert len(multiprocessing.active_children()) == 1
    assert epochs == [{0}, {0}, {2}, {3}, {0}, {0}]


def test_abandoned_epochs_of_kept_pools() -> None:
    loader: DataLoader[Any] = DataLoader(Numbers(30), 2)
    with seams() as seam:
        list(loader)
        owned(seam, loader).configure(2, 2, persistent=True)
        for _ in range(3):
            for place, batch in enumerate(loader):
                assert batch.tolist() == [2 * place, 2 * place + 1]
                if place == 3:
                    break
        pairs = list(zip(loader, loader, strict=True))
        assert len(pairs) == 15 and all(torch.equal(a, b) for a, b in pairs)


def test_script_goes_on_after_close_in_the_middle() -> None:
    loader: DataLoader[Any] = DataLoader(Numbers(30), 2, shuffle=True, num_workers=2)
    seed()
    plain = [b.tolist() for b in loader]
    seed()
    with seams() as seam:
        seen = []
        for place, batch in enumerate(loader):
            seen.append(batch.tolist())
            if place == 4:
                owned(seam, loader).configure(1, 2, True)
            if place == 6:
                owned(seam, loader).close()
                assert multiprocessing.active_children() == []
    assert seen == plain


def test_fetching_in_another_thread() -> None:
    holder: list[Any] = []
    plan = {n: (lambda o, n=n: o.configure(n % 3, 2, False)) for n in range(1, 12)}
    loader: DataLoader[Any] = DataLoader(Numbers(24), 2, num_workers=1)
    seen: list[int] = []
    with seams(at(plan, holder)) as seam:
        holder.append(seam)
        iterator = iter(loader)
        seen += next(iterator).tolist()
        thread = threading.Thread(
            target=lambda rest: seen.extend(map(int, torch.cat(list(rest)))), args=(iterator,)
        )
        del iterator
        thread.start()
        thread.join()
    assert seen == list(range(24))


def test_killed_worker_is_an_error_as_in_torch() -> None:
    loader: DataLoader[Any] = DataLoader(Numbers(40), 2)
    with seams() as seam:
        iterator = iter(loader)
        next(iterator)
        owned(seam, loader).configure(1, 2, False)
        next(iterator)
        with pytest.raises(RuntimeError, match="DataLoader worker"):
            os.kill(iterator._workers[0].pid, signal.SIGKILL)
            for _ in range(18):
                # What the worker had still to hand over is lost, in plain torch as well.
                with contextlib.suppress(OSError, EOFError):
                    next(iterator)
                time.sleep(0.1)
        del iterator


def marker(worker: int) -> None:
    numpy.random.seed(1000 + worker)


def test_worker_init_and_context_and_timeout_hold_in_every_pool() -> None:
    options: dict[str, Any] = {"worker_init_fn": marker, "timeout": 20}
    context = multiprocessing.get_context("fork")
    loader: DataLoader[Any] = DataLoader(
        Noise(8, "numpy"), 1, num_workers=1, multiprocessing_context=context, **options
    )
    first = numpy.random.RandomState(1000).rand()
    with seams() as seam:
        iterator = iter(loader)
        assert float(next(iterator)[0, 1]) == first
        owned(seam, loader).configure(2, 1, False)
        rest = [float(b[0, 1]) for b in iterator]
        assert rest.count(first) == 1  # the second pool's worker 0 begins anew
        assert owned(seam, loader).facts().start_method == "fork"
        owned(seam, loader).configure(0, None, False)
        assert len(list(loader)) == 8


def test_nothing_is_left_when_the_script_drops_the_loader() -> None:
    with seams() as seam:
        loader: DataLoader[Any] = DataLoader(Numbers(12), 2)
        list(loader)
        owned(seam, loader).configure(2, 2, persistent=True)
        list(loader)
        assert len(multiprocessing.active_children()) == 2
        del loader
        end = time.monotonic() + 5
        while multiprocessing.active_children() and time.monotonic() < end:
            time.sleep(0.01)
        assert multiprocessing.active_children() == []


@pytest.mark.parametrize("kind", ["by the script", "by its items", "not at all"])
def test_a_dataset_that_changes_under_our_workers_is_noticed(kind: str) -> None:
    data = Caching(20) if kind == "by its items" else Numbers(20, "epoch")
    loader: DataLoader[Any] = DataLoader(data, 1)
    with seams() as seam:
        for place, _ in enumerate(loader):
            if place == 3:
                owned(seam, loader).configure(1, 2, False)
            if place == 8 and kind == "by the script":
                data.epoch += 1
            if place == 12:
                owned(seam, loader).reset()
        assert bool(owned(seam, loader).staleness.trouble) == (kind == "by the script")


class Caching(Numbers):
    """Remembers its items."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.cache: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        return self.cache.setdefault(index, super().__getitem__(index))
