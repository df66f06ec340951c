"""Kept items in real training: `hasten run` with a plan is plain Python to the bit, later warm."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from PIL import Image

pytest.importorskip("torchvision")

from hasten.instrument import cache_folder

COUNT = 22
LIMIT = 240
PLAN = """
schema = 1
[settings]
cache-items = {{ store = "{store}" }}
[fingerprint]
loader = "ImageFolder, {count} items, batch size 4, {workers} workers, default_collate"
"""
Train = Callable[..., str]


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    draw = numpy.random.default_rng(0)
    for index in range(COUNT):
        where = tmp_path / "pictures" / f"class{index % 2}"
        where.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 255, (60, 80, 3), dtype=numpy.uint8)
        Image.fromarray(pixels).save(where / f"{index}.jpg")
    return tmp_path / "pictures"


@pytest.fixture
def train(tmp_path: Path, root: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(workers: int, persistent: int, store: str = "", epochs: int = 3) -> str:
        script = [str(root / "tests" / "scripts" / "pictures.py"), str(pictures)]
        script += [str(epochs), str(workers), str(persistent)]
        command = [sys.executable, *script]
        if store:
            plan = tmp_path / "plan.toml"
            plan.write_text(PLAN.format(store=store, count=COUNT, workers=workers))
            command = [sys.executable, "-m", "hasten", "run", "--force", "--plan", str(plan)]
            command += script
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert done.returncode == 0, done.stderr
        assert "can't" not in done.stderr and "Traceback" not in done.stderr, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize(
    ("workers", "persistent"),
    [
        pytest.param(0, 0, marks=pytest.mark.slow),
        pytest.param(2, 0, marks=pytest.mark.slow),
        (2, 1),
    ],
)
def test_the_real_training_is_the_same_to_the_bit(
    train: Train, workers: int, persistent: int
) -> None:
    plain = train(workers, persistent)
    assert train(workers, persistent, "memory") == plain
    assert cache_folder.entries() == [], "memory is no file"
    assert train(workers, persistent, "file") == plain  # fills
    (entry,) = cache_folder.entries()
    assert entry.size > 0 and not entry.busy and f"{COUNT} items" in entry.what
    assert train(workers, persistent, "file") == plain  # is warm
    assert [e.key for e in cache_folder.entries()] == [entry.key]


def test_a_later_run_reads_no_picture_that_is_as_it_was(train: Train, pictures: Path) -> None:
    plain = train(0, 0, "file")
    looked = random.Random(COUNT).sample(range(COUNT), 8)  # the sample that every run looks at
    paths = sorted(pictures.rglob("*.jpg"))  # in the order of ImageFolder
    path = next(path for index, path in enumerate(paths) if index not in looked)
    content, status = path.read_bytes(), path.stat()
    path.write_bytes(bytes(len(content)))  # can't be decoded any more
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # ... which nobody can know
    assert train(0, 0, "file") == plain
    Image.new("RGB", (60, 80), "red").save(path)
    changed = train(0, 0, "file")
    assert changed != plain and changed == train(0, 0)


def test_the_command_lists_and_clears_it(train: Train, pictures: Path) -> None:
    train(0, 0, "file", epochs=1)
    hasten = [sys.executable, "-m", "hasten", "cache"]
    listed = subprocess.run(hasten, capture_output=True, text=True, check=True).stdout
    assert str(pictures) in listed and "1 entry" in listed
    subprocess.run([*hasten, "--clear"], check=True, capture_output=True)
    assert cache_folder.entries() == []


def test_tuning_finds_it_and_writes_nothing(
    tmp_path: Path, root: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    draw = numpy.random.default_rng(1)
    for path in pictures.rglob("*.jpg"):  # large ones, so that decoding is what takes the time
        Image.fromarray(draw.integers(0, 255, (400, 600, 3), dtype=numpy.uint8)).save(path)
    before = sorted((p, p.stat().st_mtime_ns) for p in pictures.rglob("*"))
    plan, begun = tmp_path / "plan.toml", time.monotonic()
    script = [str(root / "tests" / "scripts" / "pictures.py"), str(pictures), "100000", "0", "0"]
    command = [sys.executable, "-m", "hasten", "tune", "--only", "cache-items", "--budget", "20"]
    command += ["--curves", "0"]
    done = subprocess.run(
        [*command, "--output", str(plan), *script],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert 'cache-items = {store = "file"}' in plan.read_text(), done.stdout
    kept = [path for path in (tmp_path / "cache" / "hasten").glob("*") if path.name != "inductor"]
    assert cache_folder.entries() == [] and not kept
    assert sorted((p, p.stat().st_mtime_ns) for p in pictures.rglob("*")) == before
    assert time.monotonic() - begun < LIMIT
