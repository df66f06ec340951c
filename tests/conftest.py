"""What holds for every test: one thread for torch, and nothing left behind."""

# ruff: noqa: E402, what imports torch comes after the settings

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# A run in the background or under nohup ignores these, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
# Before torch is imported anywhere: two cores are all there is, and often they are shared.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
# torch.compile would start a pool of processes that outlives the test.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import psutil
import pytest

from hasten.environment import look
from hasten.instrument import patching
from hasten.records import LoaderFacts, OptimizerFacts, Outcome, Profile, Ratio, RootFacts, Tried

ROOT = Path(__file__).parent.parent
_MARK = "HASTEN_TEST_MARK"
_PATIENCE = float(
    os.environ.get("HASTEN_TEST_PATIENCE", "5")
)  # seconds for threads and processes that are about to end
#: Kept by Python itself for the whole run.
_PYTHONS_OWN = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
#: Set by pytest, and by libraries once they are loaded.
_NOT_OURS = (
    "PYTEST_",
    "KMP_",
    "TORCH_",
    "TORCHINDUCTOR_",
    "_TORCHINDUCTOR_",
    "CUDA_",
    "TRITON_",
    "COLUMNS",
    "LINES",
)


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that leaves patches, environment variables, threads, processes or files."""
    mark = uuid.uuid4().hex
    environment, threads, files = _environment(), set(threading.enumerate()), _files()
    before = set(psutil.pids())
    os.environ[_MARK] = mark  # inherited by every process that the test starts
    yield
    monkeypatch.undo()
    os.environ.pop(_MARK, None)
    left = _patches() + _variables(environment)
    left += [f"thread {name}" for name in _wait(lambda: _threads(threads))]
    left += [f"process {line}" for line in _wait(lambda: _processes(mark, before))]
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
    new = [thread.name for thread in threading.enumerate() if thread not in before]
    return [name for name in new if name != "tqdm_monitor"]  # of a bar that torch.compile has


def _processes(mark: str, before: set[int]) -> list[str]:
    """New processes that carry the test's mark, also those that no longer are our children."""
    found = []
    for pid in set(psutil.pids()) - before:
        try:
            process = psutil.Process(pid)
            if process.environ().get(_MARK) != mark:
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


# --- samples -----------------------------------------------------------------------------------


@pytest.fixture
def make_profile() -> Callable[..., Profile]:
    """Builds a profile of a small image classifier on the CPU; keywords change fields."""
    return _profile


@pytest.fixture
def make_outcome() -> Callable[..., Outcome]:
    """Builds what a search found; keywords change fields."""
    return _outcome


def _profile(**changes: Any) -> Profile:
    loader = LoaderFacts(
        kind="map",
        dataset="ImageFolder",
        batch_size=32,
        length=45,
        workers=0,
        prefetch=None,
        persistent=False,
        shuffled=True,
        collate="default_collate",
        sampler="RandomSampler",
        start_method=None,
        owned=True,
        dataset_items=1437,
    )
    root = RootFacts("ResNet", 11_181_642, 62, ("float32",), "cpu", 1.0, False, False, None)
    optimizer = OptimizerFacts("AdamW", "torch.optim", 1, 62, 11_181_642, None, None, False, 1.0)
    profile = Profile(
        torch="2.14.1+cu130",
        device="cpu",
        border="loader",
        iteration_seconds=(0.3, 0.31, 0.29),
        phases={"data": 0.03, "forward": 0.1, "backward": 0.14, "optimizer": 0.02, "other": 0.01},
        loader=loader,
        roots=(root,),
        optimizers=(optimizer,),
        threads=2,
        iterations_per_epoch=45,
    )
    return dataclasses.replace(profile, **changes)


def _outcome(**changes: Any) -> Outcome:
    workers = {"workers": 2, "prefetch": 2, "persistent": True}
    tried = (
        Tried("amp-bf16", True, 1.71, 1.62, 1.8, "faster", "rounding", pairs=12),
        Tried("loader-workers", workers, 1.05, 1.01, 1.09, "faster", "exact", against="amp-bf16"),
        Tried(
            "compile",
            {"dynamic": False},
            1.2,
            1.1,
            1.3,
            "refused",
            "rounding",
            "gradient error 0.29 is above the bound 0.05, worst in layer4.1.conv2.weight",
            payback_iterations=1200,
            compile_seconds=35.2,
        ),
        Tried("threads", None, None, None, None, "not applicable", "rounding", "one core"),
    )
    outcome = Outcome(
        environment=look().describe(),
        profile=_profile(),
        tried=tried,
        setting={"amp-bf16": True, "loader-workers": workers},
        confirmed=Ratio(1.74, 1.66, 1.82),
        confirmed_verdict="faster",
        seconds=171.2,
        compile_seconds=35.2,
        iterations=812,
        shield="overlay: no file of yours is changed",
        notes=("something to know",),
        data_free=Ratio(1.1, 1.05, 1.15),
    )
    return dataclasses.replace(outcome, **changes)
