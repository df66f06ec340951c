"""The fixture that watches all other tests notices what it should."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LEAKS = """
import os, subprocess, sys, threading, time, types
from pathlib import Path
from hasten.instrument import patching

SLEEP = [sys.executable, "-c", "import time; time.sleep(5)"]
ORPHAN = "import subprocess, sys; subprocess.Popen(%r, start_new_session=True)" % SLEEP

def test_patch():
    patching.replace(types.SimpleNamespace(), "name", 1)

def test_variable():
    os.environ["LEFT_BEHIND"] = "1"

def test_variable_was_put_back():
    assert "LEFT_BEHIND" not in os.environ

def test_thread():
    threading.Thread(target=time.sleep, args=(5,), daemon=True, name="sleeper").start()

def test_child():
    test_child.process = subprocess.Popen(SLEEP)

def test_orphan():
    subprocess.run([sys.executable, "-c", ORPHAN])

def test_file():
    (Path(__file__).parent.parent / "left.txt").touch()

def test_monkeypatch(monkeypatch, tmp_path):
    monkeypatch.setenv("ANOTHER", "1")
    (tmp_path / "mine").touch()

def test_short_thread():
    threading.Thread(target=time.sleep, args=(0.2,)).start()
"""


def test_leaks_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "project" / "tests"
    folder.mkdir(parents=True)
    (folder.parent / "examples").mkdir()
    shutil.copy(Path(__file__).parent.parent / "conftest.py", folder)
    (folder / "test_leaks.py").write_text(LEAKS)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rE", "-p", "no:cacheprovider", str(folder)],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "300", "HASTEN_TEST_PATIENCE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = dict(re.findall(r"^ERROR \S+::test_(\w+) - (.+)$", result.stdout, re.MULTILINE))
    if not found:
        pytest.fail(result.stdout + result.stderr)
    assert set(found) == {"patch", "variable", "thread", "child", "orphan", "file"}
    assert "LEFT_BEHIND" in found["variable"]
    assert "sleeper" in found["thread"]
    assert "time.sleep(5)" in found["orphan"]
    assert "left.txt" in found["file"]
