"""`hasten tune` on a script that writes in every way: tuned, interrupted, killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hasten.instrument.shield.launch import ShieldMode, available_modes

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
from shield_ground import OTHER_UID, SCRIPTS, Ground, interpreter_for


def python_with_torch(uid: int) -> str | None:
    """A Python for this user that can read the packages of the one that runs the tests."""
    python = interpreter_for(uid)
    if python is None or uid == os.getuid():
        return python
    version = "import sys; print(sys.version_info[:2])"
    done = subprocess.run([python, "-c", version], capture_output=True, text=True, check=True)
    return python if done.stdout.strip() == str(sys.version_info[:2]) else None


SHIELDS = [ShieldMode.OVERLAY.value, ShieldMode.REDIRECT.value]
#: Each user and each shield once; the other two pairs with the slow tests.
GROUNDS = [
    pytest.param((user, shield), marks=() if quick else pytest.mark.slow, id=f"{shield}-{user}")
    for user, shields in (("self", SHIELDS), ("other", SHIELDS[::-1]))
    for shield, quick in zip(shields, (True, False), strict=True)
]


def uid_of(user: str) -> int:
    if user == "self":
        return os.getuid()
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    if python_with_torch(OTHER_UID) is None:
        pytest.skip("no Python of this version that another user may run")
    return OTHER_UID


@pytest.fixture(params=GROUNDS)
def ground(request: pytest.FixtureRequest) -> Iterator[Ground]:
    user, shield = uid_of(request.param[0]), request.param[1]
    if ShieldMode(shield) not in available_modes():
        pytest.skip(f"this machine does not allow {shield} mode")
    made = Ground(user, shield)
    shutil.copy(SCRIPTS / "shield_trainer.py", made.top / "shield_trainer.py")
    (made.top / "out").mkdir()
    os.chown(made.top / "out", user, user)
    yield made
    made.remove()


def start(ground: Ground, budget: int) -> subprocess.Popen[str]:
    """`hasten tune` in the user's project, as that user."""
    packages = next(p for p in map(Path, sys.path) if (p / "torch").is_dir())
    python = python_with_torch(ground.uid)
    assert python is not None
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(ground.top / "home"),
        "TMPDIR": str(ground.top / "tmp"),
        "PYTHONPATH": os.pathsep.join([ground.library, str(packages)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "LC_ALL": "C.UTF-8",
    }
    command = [python, "-m", "hasten", "tune", "--shield", ground.mode, "--skip", "compile"]
    command += ["--skip", "threads", "--skip", "compiled-optimizer", "--budget", str(budget)]
    command += ["--curves", "0"]
    command += ["--output", str(ground.top / "out" / "hasten.toml")]
    return subprocess.Popen(
        [*command, str(ground.top / "shield_trainer.py")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ground.project,
        user=ground.uid,
        group=ground.uid,
        extra_groups=[],
        start_new_session=True,
    )


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    pytest.fail(f"never said {text!r}")


def test_tuned_to_its_end(ground: Ground) -> None:
    process = start(ground, 8)
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, output
    assert (ground.top / "out" / "hasten.toml").exists()
    ground.assert_untouched()


def test_interrupted(ground: Ground) -> None:
    process = start(ground, 100)
    wait_for(process, "an iteration takes")
    time.sleep(random.uniform(0.5, 2.0))
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    ground.assert_untouched()


def kill(ground: Ground, times: int, longest: float) -> None:
    """SIGKILL at random moments, one in each of equal parts of `longest` seconds."""
    for index in range(times):
        process = start(ground, 100)
        time.sleep(random.uniform(index, index + 1) * longest / times)
        assert process.poll() is None, process.communicate()
        process.kill()
        process.communicate(timeout=60)
        ground.assert_untouched()


def test_killed(ground: Ground) -> None:
    kill(ground, 1, 8.0)


@pytest.mark.slow
def test_killed_twenty_times(ground: Ground) -> None:
    kill(ground, 20, 25.0)
