"""`hasten tune` on scripts that can't be tuned, or only just: one line, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

LINE = "import os, sys, time\n"
TRAINER = """\
import itertools, os, sys, time
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(256, 64), torch.randn(256, 1))
loader = torch.utils.data.DataLoader(data, batch_size=16)
def step(x, y):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
def train(iterations):
    batches = itertools.chain.from_iterable(iter(loader) for _ in itertools.count())
    for x, y in itertools.islice(batches, iterations):
        step(x, y)
"""
NEEDS_ARGUMENTS = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.parse_args()
"""
SHORT = TRAINER + "train(12)\n"
SWALLOWS = (
    TRAINER
    + """\
while True:
    try:
        train(1000)
    except BaseException:
        pass
"""
)
OPTIONS = ["--budget", "4", "--skip", "compile", "--skip", "threads", "--skip", "retain-heap"]
OPTIONS += ["--skip", "compiled-optimizer", "--curves", "0"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hasten", "tune", *OPTIONS, *arguments]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's folder, with its temporary files beside it."""
    (tmp_path / "tmp").mkdir()
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def start(project: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*arguments),
        cwd=project,
        env={**os.environ, "TMPDIR": str(project.parent / "tmp"), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def assert_nothing_left(project: Path, *there: str) -> None:
    """No file but these, and within some seconds no process of that session."""
    assert sorted(os.listdir(project)) == sorted(there)
    assert os.listdir(project.parent / "tmp") == []
    deadline = time.monotonic() + 5
    while left := [p for p in psutil.process_iter(["cmdline"]) if str(project) in _line(p)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def _line(process: psutil.Process) -> str:
    return " ".join(process.info["cmdline"] or ())


def tune(project: Path, script: str, *arguments: str) -> tuple[int, list[str], str]:
    """Exit code, lines of standard error, and standard output."""
    (project / "train.py").write_text(script)
    process = start(project, *arguments)
    out, err = process.communicate(timeout=150)
    return process.returncode, err.splitlines(), out


@pytest.mark.parametrize(
    ("script", "own", "expected"),
    [
        (NEEDS_ARGUMENTS, "required: --data", "before it trained: train.py: error: the"),
        (LINE + "sys.exit(0)", "", "ended without training: it never imported torch"),
        (LINE + "sys.exit('no data')", "no data", "failed before it trained: no data"),
        (LINE + "os._exit(3)", "", "failed before it trained"),
        (LINE + "os.kill(os.getpid(), 11)", "", "failed before it trained"),
        (LINE + "raise ValueError('mine')", "ValueError: mine", "before it trained: ValueError"),
        (LINE + "raise KeyboardInterrupt", "KeyboardInterrupt", "before it trained"),
        (LINE + "input('go on? ')", "EOFError", "before it trained: EOFError"),
        ("import torch\nprint('hello')", "hello", "no backward pass was seen"),
        (TRAINER + "train(5)\nraise SystemExit(4)", "", "in its first iterations: exit status 4"),
        (TRAINER + "train(5)\n1 / 0", "ZeroDivisionError", "failed in its first iterations"),
        (SHORT, "", "ended after 12 iterations; at least 40 are needed"),
    ],
)
def test_one_line_below_the_scripts_own_words(
    project: Path, script: str, own: str, expected: str
) -> None:
    status, lines, out = tune(project, script, "train.py")
    assert (status, out) == (2, ""), lines
    assert lines[-1].startswith("hasten: ") and expected in lines[-1], lines
    assert any(own in line for line in lines[:-1]) or not own, lines
    assert not any("hasten" in line for line in lines[:-1]), "a traceback of ours"
    assert_nothing_left(project, "train.py")


@pytest.mark.parametrize(
    ("iterations", "status"), [(5, 2), pytest.param(120, 0, marks=pytest.mark.slow)]
)
def test_a_script_that_ends_early_is_repeated(project: Path, iterations: int, status: int) -> None:
    got, lines, _ = tune(project, f"{TRAINER}train({iterations})\n", "--repeat", "train.py")
    assert got == status, lines
    if status:
        assert lines[-1].startswith("hasten: the script ends after 5 iterations"), lines
    assert_nothing_left(project, "train.py", *([] if status else ["hasten.toml"]))


@pytest.mark.slow
def test_a_script_that_swallows_every_exception(project: Path) -> None:
    status, lines, _ = tune(project, SWALLOWS, "train.py")
    assert status == 0, lines
    assert_nothing_left(project, "hasten.toml", "train.py")


def test_a_module(project: Path) -> None:
    (project / "package").mkdir()
    (project / "package" / "there.py").write_text(TRAINER + "train(10**9)\n")
    process = start(project, "-m", "package.there")
    _, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    assert_nothing_left(project, "hasten.toml", "package")
    assert os.listdir(project / "package") == ["there.py"]


#: When the interrupt comes: the script's text, and what is awaited in it or in the output.
STAGES = {
    "before torch": (LINE + "open('/dev/null'); time.sleep(100)", 2.0, ""),
    "before training": ("import torch, time\ntime.sleep(100)", 5.0, ""),
    "swallowed": (SWALLOWS, 1.0, "an iteration takes"),
    "searching": (TRAINER + "train(10**9)", 0.5, "an iteration takes"),
}


@pytest.mark.parametrize("stage", STAGES)
def test_an_interrupt(project: Path, stage: str) -> None:
    script, seconds, text = STAGES[stage]
    (project / "train.py").write_text(script)
    process = start(project, "--budget", "100", "train.py")
    assert process.stderr is not None
    while text and text not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: parent and children
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err, err
    if not text:
        assert err.splitlines()[-1] == "hasten: interrupted before anything was known"
    assert_nothing_left(project, "train.py")
