"""Real experiment trackers under `hasten tune`: off in every trial, and as ever without hasten.

Skipped where a tracker isn't installed. The scripts look from inside the trial whether anything
was logged or anybody called (`tests/scripts/tracker_watch.py`), and fail if so.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.instrument.shield.launch import ShieldMode, available_modes

SCRIPTS = Path(__file__).parent.parent / "scripts"
PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
OPTIONS = ["--curves", "0", "--skip", "compile", "--skip", "threads", "--skip", "retain-heap"]
# So that a run without hasten logs to files, without a server and without a database.
LOCAL = {
    "WANDB_MODE": "offline",
    "MLFLOW_TRACKING_URI": "file:./mlruns",
    "MLFLOW_ALLOW_FILE_STORE": "true",
}


@pytest.fixture(params=list(PACKAGES))
def script(request: pytest.FixtureRequest) -> str:
    if importlib.util.find_spec(PACKAGES[request.param]) is None:
        pytest.skip(f"{request.param} is not installed")
    return str(SCRIPTS / f"tracker_{request.param}.py")


@pytest.fixture(params=[ShieldMode.OVERLAY, ShieldMode.REDIRECT])
def mode(request: pytest.FixtureRequest) -> str:
    if request.param not in available_modes():
        pytest.skip(f"this machine does not allow {request.param.value} mode")
    return str(request.param.value)


def start(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    folder.mkdir()
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def tune(folder: Path, script: str, mode: str, budget: int) -> subprocess.Popen[str]:
    line = ["-m", "hasten", "tune", *OPTIONS, "--shield", mode, "--budget", str(budget)]
    return start(folder, *line, "--output", str(folder.parent / "plan.toml"), script)


def test_without_hasten_they_log(script: str, tmp_path: Path) -> None:
    """What the other tests would see if a tracker were on."""
    variables = {**LOCAL, "HASTEN_TRACKER_ON": "1", "HASTEN_TRACKER_ITERATIONS": "20"}
    process = start(tmp_path / "work", script, **variables)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert os.listdir(tmp_path / "work") != []


def test_off_while_tuning(script: str, mode: str, tmp_path: Path) -> None:
    process = tune(tmp_path / "work", script, mode, 5)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    assert os.listdir(tmp_path / "work") == []


def test_off_when_interrupted(script: str, mode: str, tmp_path: Path) -> None:
    process = tune(tmp_path / "work", script, mode, 100)
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if "an iteration takes" in line:
            break
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, "".join(seen) + output
    assert os.listdir(tmp_path / "work") == []


def test_on_again_with_the_plan(script: str, tmp_path: Path) -> None:
    """`hasten run` is the real training: what it logs is wanted."""
    variables = {**LOCAL, "HASTEN_TRACKER_ON": "1", "HASTEN_TRACKER_ITERATIONS": "20"}
    process = start(tmp_path / "work", "-m", "hasten", "run", "--watch", script, **variables)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert os.listdir(tmp_path / "work") != []
