"""A trial costs the user nothing, in either mode, as root or not, whatever way it ends."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hasten.instrument.shield.launch import ShieldMode, available_modes

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
from shield_ground import OTHER_UID, Ground, interpreter_for, sleep_between

USERS = ["self", "other"]
SHIELDS = [ShieldMode.OVERLAY.value, ShieldMode.REDIRECT.value]
ENDLESS = ("--steps", "100000", "--pause", "0.01")


@pytest.fixture(params=USERS)
def user(request: pytest.FixtureRequest) -> int:
    if request.param == "self":
        return os.getuid()
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    if interpreter_for(OTHER_UID) is None:
        pytest.skip("no Python 3.10 that another user may run")
    return OTHER_UID


@pytest.fixture(params=SHIELDS)
def ground(request: pytest.FixtureRequest, user: int) -> Iterator[Ground]:
    if ShieldMode(request.param) not in available_modes():
        pytest.skip(f"this machine does not allow {request.param} mode")
    made = Ground(user, request.param)
    yield made
    made.remove()


def test_the_checks_notice_a_change() -> None:
    ground = Ground(os.getuid(), ShieldMode.NONE.value)
    try:
        output, _ = ground.run(ground.writer())
        assert "ended 0" in output
        assert ground.leftovers() == []  # not shielded, but processes end all the same
        assert ground.fingerprint() != ground.before
    finally:
        ground.remove()


def test_runs_to_its_end(ground: Ground) -> None:
    output, errors = ground.run(ground.writer("--steps", "3"))
    assert "wrote 2 argv ['--steps', '3']" in output, output + errors
    assert "ended 0 None" in output and "cleaned" in output
    ground.assert_untouched()


def test_interrupted(ground: Ground) -> None:
    process = ground.start(ground.writer(*ENDLESS, "--shared-memory", ground.shared_memory))
    assert process.stdout is not None
    assert process.stdout.readline().startswith("started")
    sleep_between(process, 0.8, 1.4)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in errors
    ground.assert_untouched()


def kill_at_random_moments(ground: Ground, times: int) -> None:
    """One moment in each of equal parts of the time from the start to well into the writing."""
    part = 2.0 / times
    for index in range(times):
        process = ground.start(ground.writer(*ENDLESS, "--shared-memory", ground.shared_memory))
        sleep_between(process, index * part, (index + 1) * part)
        process.kill()
        process.communicate(timeout=30)
        ground.assert_untouched()


def test_hasten_killed(ground: Ground) -> None:
    kill_at_random_moments(ground, 4)


@pytest.mark.slow
def test_hasten_killed_twenty_times(ground: Ground) -> None:
    kill_at_random_moments(ground, 20)


@pytest.mark.parametrize("victim", ["keeper", "guard", "script"])
def test_another_process_killed(ground: Ground, victim: str) -> None:
    process = ground.start(ground.writer(*ENDLESS))
    assert process.stdout is not None
    keeper = int(process.stdout.readline().split()[1])
    sleep_between(process, 0.6, 1.0)
    guard = int(Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()[0])
    script = next(
        int(p.split(":")[0])
        for p in ground.processes()
        if "shield_writer" in p and "shield_driver" not in p and "-c" not in p.split("\0")
    )
    os.kill({"keeper": keeper, "guard": guard, "script": script}[victim], signal.SIGKILL)
    output, errors = process.communicate(timeout=30)
    assert "ended -9" in output, output + errors
    ground.assert_untouched()


def test_over_the_cap(ground: Ground) -> None:
    program = ["/bin/sh", "-c", "head -c 100000000 /dev/zero > ${TMPDIR:-.}/big; sleep 60"]
    output, _ = ground.run(program, cap=30_000_000)
    assert "ended -9 wrote more than 29 MiB of scratch files" in output
    ground.assert_untouched()


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(
            "trap '' TERM INT HUP; sleep 300 & echo ready; sleep 300", id="ignores signals"
        ),
        pytest.param(
            "(setsid sh -c 'sleep 300 & echo ready; sleep 300' &) ; sleep 300", id="daemon"
        ),
    ],
)
def test_stubborn_processes(ground: Ground, program: str) -> None:
    process = ground.start(["/bin/sh", "-c", program])
    assert process.stdout is not None
    assert {process.stdout.readline().split()[0] for _ in range(2)} == {"started", "ready"}
    process.terminate()
    process.communicate(timeout=30)
    ground.assert_untouched()


@pytest.mark.parametrize("code, status", [("exit 7", 7), ("kill -TERM $$", -15)])
def test_status(ground: Ground, code: str, status: int) -> None:
    output, _ = ground.run(["/bin/sh", "-c", code])
    assert f"ended {status} None" in output
    ground.assert_untouched()


def test_file_functions(ground: Ground) -> None:
    assert ground.python is not None
    program = [ground.python, str(ground.top / "shield_files.py")]
    output, errors = ground.run(program, folder="corner")
    assert "all as in plain Python" in output, output + errors
    assert "ended 0" in output
    ground.assert_untouched()


def test_file_functions_in_plain_python() -> None:
    ground = Ground(os.getuid(), ShieldMode.NONE.value)
    try:
        program = [sys.executable, str(ground.top / "shield_files.py"), "--database"]
        output, errors = ground.run(program, folder="corner")
        assert "all as in plain Python" in output, output + errors
    finally:
        ground.remove()


@pytest.mark.parametrize("mode", SHIELDS)
def test_torch_saves(mode: str) -> None:
    pytest.importorskip("torch")
    if ShieldMode(mode) not in available_modes():
        pytest.skip(f"this machine does not allow {mode} mode")
    ground = Ground(os.getuid(), mode)
    try:
        output, errors = ground.run(ground.writer("--torch", "--steps", "2"))
        assert "ended 0 None" in output, output + errors
        ground.assert_untouched()
    finally:
        ground.remove()
