"""The store: what is written is read by all, what is broken is not there, nobody waits."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hasten.environment import MIB
from hasten.instrument.seams import cache_store
from hasten.instrument.seams.cache_region import Region
from hasten.instrument.seams.cache_store import Store

COUNT = 64
CONTEXT = multiprocessing.get_context("fork")


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store(Region.anonymous(Store.size_for(COUNT, 16 * MIB)), COUNT, memory=False)
    yield made
    made.close()


def content(store: Store, index: int, stamp: int = 1) -> bytes | None:
    data = store.read(index, stamp)
    return None if data is None else bytes(data)


def test_read_what_was_written(store: Store) -> None:
    assert content(store, 3) is None
    assert store.write(3, 1, [b"abc", memoryview(b"de")])
    assert content(store, 3) == b"abcde"
    assert content(store, 4) is None
    assert content(store, 3, stamp=2) is None, "the file has changed since"
    assert store.write(3, 2, [b"new"])
    assert content(store, 3, stamp=2) == b"new" and content(store, 3) is None


def test_processes_share_it(store: Store) -> None:
    def fill(part: int) -> None:
        for index in range(part, COUNT, 4):
            store.write(index, 1, [bytes([index]) * 10_000])

    workers = [CONTEXT.Process(target=fill, args=(part,)) for part in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    missing = [i for i in range(COUNT) if content(store, i) != bytes([i]) * 10_000]
    # A claim that meets another one three times in a row is given up: never waited for.
    assert len(missing) <= 4


def test_a_killed_writer_leaves_no_lock(store: Store) -> None:
    def write_for_ever() -> None:
        while True:
            for index in range(COUNT):
                store.write(index, 1, [bytes([index]) * 100])

    for _ in range(5):
        worker = CONTEXT.Process(target=write_for_ever)
        worker.start()
        time.sleep(0.02)
        os.kill(worker.pid or 0, signal.SIGKILL)
        worker.join()
        assert all(content(store, i) in (None, bytes([i]) * 100) for i in range(COUNT))
    assert store.write(5, 9, [b"after"]) or store.full
    assert content(store, 5, stamp=9) == b"after" or store.full


def test_it_is_bounded(store: Store) -> None:
    large = bytes(MIB)
    kept = sum(store.write(index, 1, [large]) for index in range(COUNT))
    assert 8 <= kept <= 16
    assert not store.write(63, 1, [large])
    assert content(store, 0) == large, "what was kept is not thrown out"
    assert not store.write(0, 2, [bytes(2**26)])


def test_memory_that_runs_short_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_store, "free_memory", lambda: 100 * MIB)
    store = Store(Region.anonymous(Store.size_for(4, 16 * MIB)), 4, memory=True)
    assert not store.write(0, 1, [b"x"]) and store.full
    store.close()


def test_an_entry_that_is_torn_or_moved_is_none(store: Store) -> None:
    store.write(1, 1, [b"one"])
    store.write(2, 1, [b"two"])
    size, first = 32, 4096
    entry = bytes(store._region.view[first + size : first + 2 * size])
    store._region.write([entry], first + 3 * size)  # of another item
    assert content(store, 3) is None
    store._region.write([entry[:8] + bytes(8) + entry[16:]], first + size)
    assert content(store, 1) is None
    assert content(store, 2) == b"two"


def test_bytes_that_were_lost_are_seen(tmp_path: Path) -> None:
    size = Store.size_for(COUNT, MIB)
    store = Store(Region.file(tmp_path / "items", size), COUNT, memory=False)
    store.write(1, 1, [b"one" * 100])
    store.write(2, 1, [b"two" * 100])
    store.close()
    data = bytearray((tmp_path / "items").read_bytes())
    place = data.index(b"one" * 100)
    data[place] = 0
    (tmp_path / "items").write_bytes(data)
    again = Store(Region.file(tmp_path / "items", size), COUNT, memory=False)
    assert content(again, 1) is None
    assert content(again, 2) == b"two" * 100
    assert again.write(3, 1, [b"three"]), "and it goes on behind what is there"
    assert content(again, 2) == b"two" * 100 and content(again, 3) == b"three"
    again.close()


def test_a_full_disk_is_no_signal(tmp_path: Path) -> None:
    region = Region.file(tmp_path / "items", 8 * MIB)

    def write() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))
        assert region.write([bytes(10)], 100)
        assert not region.write([bytes(2 * MIB)], 0) and not region.write([bytes(10)], 4 * MIB)

    process = CONTEXT.Process(target=write)
    process.start()
    process.join()
    assert process.exitcode == 0
    region.close()
