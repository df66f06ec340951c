"""What is the matter with the machine is told, too: a full processor, and a small /dev/shm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from diagnosing import SCRIPTS, diagnosed, line_of_mistake, one

SPIN = "import os\nwhile os.getppid() == {parent}: pass"
SMALL = "mount -t tmpfs -o size=40m tmpfs /dev/shm && exec"


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Other programs that take all the processor time they can get."""
    code = SPIN.format(parent=os.getpid())
    spinning = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_other_programs_are_told_with_what_they_cost() -> None:
    with busy(2 * (os.cpu_count() or 1)):
        document = diagnosed("steady.py", budget=8.0)
    found = one(document, "busy-machine")
    assert found["kind"] == "limit" and 0.05 < found["share"] <= 1.0


def can_mount() -> bool:
    """Whether this process may have a /dev/shm of its own."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "--mount", "sh", "-c", f"{SMALL} true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "times"), [((), 1), (("--right",), 0)])
def test_batches_that_do_not_fit_into_shared_memory(arguments: tuple[str, ...], times: int) -> None:
    if not can_mount():
        pytest.skip("a /dev/shm of its own takes the right to mount")
    script = "finding_shared_memory_too_small.py"
    command = f"{SMALL} {sys.executable} -m hasten diagnose --json --budget 8 {script} "
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command + " ".join(arguments)],
        cwd=SCRIPTS, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["findings"]
    mine = [each for each in found if each["name"] == "shared-memory-too-small"]
    assert len(mine) == times, [each["name"] for each in found]
    assert not [each for each in found if each["name"] == "worker-memory-growth"]
    if mine:
        assert mine[0]["line"] == line_of_mistake(script)
        assert mine[0]["kind"] == "risk"
