"""The folder of kept items: listed, bounded, cleared, and never outside of the user's cache."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from click.testing import CliRunner

from hasten.commands.cache import command, human
from hasten.errors import HastenError
from hasten.instrument import cache_folder
from hasten.instrument.launch import ChildDescription, environment

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hasten" / "items"


def entry(key: str, size: int, used: float) -> None:
    path, _, lock = cache_folder.claim(key, f"pictures of {key}", size)
    path.write_bytes(os.urandom(size))
    os.close(lock)
    os.utime(path.with_suffix(".json"), (used, used))


def test_where_it_is(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder.folder() == cache
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder.folder() == Path.home() / ".cache" / "hasten" / "items"


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container, under a number that /etc/passwd doesn't know."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert cache_folder.entries() == []
    with pytest.raises(OSError, match="no home folder"):
        cache_folder.claim("a", "pictures", 1)
    with pytest.raises(HastenError, match="set XDG_CACHE_HOME"):
        CliRunner().invoke(command, catch_exceptions=False, standalone_mode=False)
    assert not {"TORCHINDUCTOR_CACHE_DIR"} & set(environment(ChildDescription("serve"), {}))


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then compiled code goes where torch puts it by itself, in a trial to its scratch."""
    (tmp_path / "cache").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    own = {"TORCHINDUCTOR_CACHE_DIR": "/own"}
    assert "TORCHINDUCTOR_CACHE_DIR" not in environment(ChildDescription("serve"), own)
    assert environment(ChildDescription("run"), own)["TORCHINDUCTOR_CACHE_DIR"] == "/own"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    kept = str(tmp_path / "new" / "hasten" / "inductor")
    assert environment(ChildDescription("serve"), own)["TORCHINDUCTOR_CACHE_DIR"] == kept
    assert not (tmp_path / "new").exists()


def test_listed_and_cleared(cache: Path) -> None:
    run = CliRunner()
    assert "nothing is kept" in run.invoke(command).output
    assert not cache.exists(), "looking writes nothing"
    entry("a", 100_000, 1e9)
    entry("b", 50_000, 2e9)
    found = cache_folder.entries()
    assert [e.key for e in found] == ["b", "a"] and found[1].size >= 100_000
    output = run.invoke(command).output
    assert "pictures of a" in output and "2 entries" in output and "2001-09-09" in output
    assert "removed 2 entries" in run.invoke(command, ["--clear"]).output
    assert cache_folder.entries() == [] and list(cache.iterdir()) == []


def test_what_is_in_use_stays(cache: Path) -> None:
    path, _, lock = cache_folder.claim("a", "pictures", 10)
    path.write_bytes(b"x" * 5000)
    entry("b", 5000, 1e9)
    assert cache_folder.clear()[0] == 1
    assert [(e.key, e.busy) for e in cache_folder.entries()] == [("a", True)]
    assert "in use" in CliRunner().invoke(command, ["--clear"]).output
    os.close(lock)
    assert cache_folder.clear()[0] == 1


def test_the_one_unused_for_longest_makes_room(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 0, 800_000))
    entry("old", 100_000, 1e9)
    entry("new", 60_000, 2e9)
    _, room, lock = cache_folder.claim("third", "pictures", 150_000)
    os.close(lock)
    assert room == 150_000
    assert {e.key for e in cache_folder.entries()} == {"new"}
    _, room, lock = cache_folder.claim("huge", "pictures", 10**8)
    os.close(lock)
    assert 0 < room <= 220_000, "a quarter of what is free"


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OSError):
        cache_folder.claim("a", "pictures", 10)
    assert cache_folder.entries() == []


def test_damaged_notes_are_no_error(cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / "x.items").write_bytes(b"1")
    (cache / "y.items").write_bytes(b"1")
    (cache / "y.json").write_bytes(b"\xff{")
    assert [e.what for e in cache_folder.entries()] == ["unknown", "unknown"]


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 2**40, "3.0 TiB")]
)
def test_sizes_for_a_reader(size: int, text: str) -> None:
    assert human(size) == text
