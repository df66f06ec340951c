"""What holds for every test: one thread for torch, and nothing left behind."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

# Before torch is imported anywhere: two cores are all there is, and often they are shared.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
# torch.compile would start a pool of processes that outlives the test.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import psutil
import pytest

from hasten.instrument import patching

ROOT = Path(__file__).parent.parent
_MARK = "HASTEN_TEST_MARK"
_PATIENCE = 5.0  # seconds for threads and processes that are about to end
#: Kept by Python itself for the whole run.
_PYTHONS_OWN = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
#: Set by pytest, and by libraries once they are loaded.
_NOT_OURS = ("PYTEST_", "KMP_", "TORCH_", "TORCHINDUCTOR_", "CUDA_", "TRITON_", "COLUMNS", "LINES")


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that leaves patches, environment variables, threads, processes or files."""
    mark = uuid.uuid4().hex
    environment, threads, files = _environment(), set(threading.enumerate()), _files()
    os.environ[_MARK] = mark  # inherited by every process that the test starts
    yield
    monkeypatch.undo()
    os.environ.pop(_MARK, None)
    left = _patches() + _variables(environment)
    left += [f"thread {name}" for name in _wait(lambda: _threads(threads))]
    left += [f"process {line}" for line in _wait(lambda: _processes(mark))]
    left += [f"file {path}" for path in sorted(_files() - files)]
    if left:
        pytest.fail("the test left behind: " + "; ".join(left))


def _wait(look: Callable[[], list[str]]) -> list[str]:
    """What is still there after a while."""
    end = time.monotonic() + _PATIENCE
    while (found := look()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


def _patches() -> list[str]:
    left = [f"patch of {patch.owner!r}.{patch.name}" for patch in patching.active()]
    patching.restore_all()
    return left


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(_NOT_OURS) and k != _MARK}


def _variables(before: dict[str, str]) -> list[str]:
    now = _environment()
    changed = [name for name in {*before, *now} if before.get(name) != now.get(name)]
    for name in changed:
        os.environ.pop(name, None)
        if name in before:
            os.environ[name] = before[name]
    return [f"variable {name}" for name in sorted(changed)]


def _threads(before: set[threading.Thread]) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread not in before]


def _processes(mark: str) -> list[str]:
    """Processes that carry the test's mark, also those that no longer are our children."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.environ().get(_MARK) != mark:
                continue
            line = " ".join(process.cmdline())
            if process.status() != psutil.STATUS_ZOMBIE and not any(
                o in line for o in _PYTHONS_OWN
            ):
                found.append(f"{process.pid} {line}"[:160])
        except (psutil.Error, OSError):
            continue
    return found


def _files() -> set[str]:
    """What lies in the repository's folder, the examples and the current directory."""
    found: set[str] = set()
    for folder in {ROOT, ROOT / "examples", Path.cwd()}:
        # A test that works in a folder of its own may write there.
        if folder == ROOT or ROOT in folder.parents:
            found |= {str(path) for path in folder.iterdir() if path.name != "__pycache__"}
    return found - {str(ROOT / name) for name in (".pytest_cache", ".hypothesis", ".mypy_cache")}
