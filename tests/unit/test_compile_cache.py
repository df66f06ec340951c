"""What a killed compilation leaves behind does not spoil the next one."""

from __future__ import annotations

import os
import time
from pathlib import Path

from hasten.tuning import compile_cache


def make(path: Path, content: bytes, age: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    then = time.time() - age
    os.utime(path, (then, then))
    return path


def test_what_was_written_since_is_forgotten(tmp_path: Path) -> None:
    old = make(tmp_path / "a" / "old.so", b"x", 100.0)
    cut = make(tmp_path / "a" / "cut.so", b"x", 1.0)
    source = make(tmp_path / "b" / "new.py", b"x", 1.0)
    compile_cache.forget_since(str(tmp_path), time.time() - 50.0)
    assert old.exists() and not cut.exists() and not source.exists()


def test_empty_libraries_are_swept(tmp_path: Path) -> None:
    empty = make(tmp_path / "a" / "x.main.so", b"", 100.0)
    whole, lock = make(tmp_path / "y.so", b"ELF", 100.0), make(tmp_path / "z.lock", b"", 100.0)
    compile_cache.sweep(str(tmp_path))
    assert not empty.exists() and whole.exists() and lock.exists()


def test_without_a_folder_there_is_nothing_to_do(tmp_path: Path) -> None:
    compile_cache.sweep(str(tmp_path / "absent"))
    compile_cache.forget_since(str(tmp_path / "absent"), 0.0)
