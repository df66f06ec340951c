"""What a program behind the shield sees, and what the parent can do with it."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hasten.instrument.shield import landlock, scratch
from hasten.instrument.shield.launch import (
    ShieldedProcess,
    ShieldError,
    ShieldMode,
    available_modes,
    launch,
)

SCRIPTS = Path(__file__).parent.parent / "scripts"


@pytest.fixture(params=list(ShieldMode))
def mode(request: pytest.FixtureRequest) -> ShieldMode:
    chosen: ShieldMode = request.param
    if chosen not in available_modes():
        pytest.skip(f"this machine does not allow {chosen.value} mode")
    return chosen


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HASTEN_SCRATCH": str(tmp_path / "scratch"), "MINE": "1"}


@pytest.fixture
def null() -> Iterator[int]:
    descriptor = os.open(os.devnull, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def start(
    argv: list[str], mode: ShieldMode, environment: dict[str, str], cwd: Path, **more: Any
) -> ShieldedProcess:
    return launch(argv, env=environment, cwd=str(cwd), mode=mode, **more)


def test_modes_are_ordered_and_end_with_none() -> None:
    modes = available_modes()
    assert modes[-1] is ShieldMode.NONE
    assert modes == [mode for mode in ShieldMode if mode in modes]


def test_redirect_works_where_the_kernel_has_landlock() -> None:
    if landlock.version() == 0:
        pytest.skip("this kernel has no Landlock")
    assert ShieldMode.REDIRECT in available_modes()


def test_overlay_works_where_namespaces_do() -> None:
    layers = "lowerdir=/usr,upperdir=/mnt/u,workdir=/mnt/w"
    script = f"mount -t tmpfs t /mnt && cd /mnt && mkdir u w && mount -t overlay o /usr -o {layers}"
    confined = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *confined, "--mount", "--pid", "--fork", "--mount-proc", "sh", "-ec"]
    try:
        done = subprocess.run([*command, script], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("the command unshare is not here to tell")
    if done.returncode != 0:
        pytest.skip(f"not allowed here: {done.stderr.decode()}")
    assert ShieldMode.OVERLAY in available_modes()


def test_looks_like_plain_python(
    mode: ShieldMode, environment: dict[str, str], tmp_path: Path
) -> None:
    command = [sys.executable, str(SCRIPTS / "shield_identity.py"), "--epochs", "3", "ü"]
    plain = subprocess.run(
        command,
        env=environment,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=2,
        check=True,
    )
    reading, writing = os.pipe()
    with start(command, mode, environment, tmp_path, stdout=writing, stderr=2) as process:
        os.close(writing)
        with open(reading, "rb") as output:
            shielded = json.loads(output.read())
        assert process.wait(10) == 0
    expected = json.loads(plain.stdout)
    added = shielded["environment"].keys() - expected["environment"].keys()
    if mode is ShieldMode.REDIRECT:
        assert added == {"HASTEN_SHIELD", "TMPDIR", "TRITON_CACHE_DIR"}
    else:
        assert added <= {"HASTEN_SHIELD"}  # as an ordinary user; the bootstrap removes it
    for name in added:
        del shielded["environment"][name]
    assert shielded == expected


def test_passed_descriptors(
    mode: ShieldMode, environment: dict[str, str], tmp_path: Path, null: int
) -> None:
    reading, writing = os.pipe()
    command = [sys.executable, "-c", f"import os; os.write({writing}, b'hello')"]
    with start(
        command, mode, environment, tmp_path, pass_fds=[writing], stdout=null, stderr=2
    ) as process:
        os.close(writing)
        with open(reading) as pipe:
            # Ends: no keeper holds the other end open.
            assert pipe.read() == "hello"
        assert process.wait(10) == 0


def test_end_of_a_descriptor_shows_while_the_script_runs(
    mode: ShieldMode, environment: dict[str, str], tmp_path: Path, null: int
) -> None:
    reading, writing = os.pipe()
    command = [sys.executable, "-c", f"import os, time; os.close({writing}); time.sleep(60)"]
    with start(
        command, mode, environment, tmp_path, pass_fds=[writing], stdout=null, stderr=null
    ) as process:
        os.close(writing)
        with open(reading) as pipe:
            assert pipe.read() == ""
        assert process.poll() is None


def test_kept_folder_is_written_for_real(
    mode: ShieldMode, environment: dict[str, str], tmp_path: Path, null: int
) -> None:
    kept = tmp_path / "cache"
    command = ["/bin/sh", "-c", f"echo 1 > {kept}/compiled"]
    with start(
        command, mode, environment, tmp_path, keep=[str(kept)], stdout=null, stderr=2
    ) as process:
        assert process.wait(10) == 0
    assert (kept / "compiled").read_text() == "1\n"


def test_hanging_script_is_killed_twice(
    mode: ShieldMode, environment: dict[str, str], tmp_path: Path, null: int
) -> None:
    process = start(["sleep", "300"], mode, environment, tmp_path, stdout=null, stderr=2)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    process.kill()
    process.kill()
    assert process.poll() == -9 and process.reason == "stopped"
    assert process.left == [] and not os.path.exists(process.scratch)


@pytest.mark.parametrize("argv", [["no-such-program"], ["/etc"]])
def test_no_such_program(
    argv: list[str], mode: ShieldMode, environment: dict[str, str], tmp_path: Path, null: int
) -> None:
    with pytest.raises(ShieldError, match="no such program"):
        start(argv, mode, environment, tmp_path, stdout=null, stderr=null)


def test_services_on_sockets_answer(
    mode: ShieldMode, environment: dict[str, str], tmp_path: Path, null: int
) -> None:
    path = tmp_path / "service"
    code = f"import socket; socket.socket(socket.AF_UNIX).connect({str(path)!r})"
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(path))
        service.listen()
        command = [sys.executable, "-c", code]
        with start(command, mode, environment, tmp_path, stdout=null, stderr=2) as process:
            assert process.wait(10) == 0


def test_describes_what_is_not_covered(
    mode: ShieldMode, environment: dict[str, str], tmp_path: Path, null: int
) -> None:
    with start(["true"], mode, environment, tmp_path, stdout=null, stderr=null) as process:
        text = process.describe()
    assert "\n" not in text and mode.value in text and "sockets, databases, uploads" in text


@pytest.mark.parametrize("call", ["touch", "chmod 600", "chmod 0", "truncate -s 0", "rm -f"])
def test_commands_do_not_touch_files_by_absolute_path(
    call: str, mode: ShieldMode, environment: dict[str, str], tmp_path: Path, null: int
) -> None:
    if mode is ShieldMode.NONE:
        pytest.skip("this mode does not shield files")
    precious = tmp_path / "precious"
    precious.write_text("data")
    os.utime(precious, (5, 5))
    before = precious.stat()
    command = ["/bin/sh", "-c", f"{call} {precious}"]
    with start(command, mode, environment, tmp_path, stdout=null, stderr=null) as process:
        status = process.wait(10)
    after = precious.stat()
    assert (after.st_mode, after.st_mtime, after.st_size) == (before.st_mode, 5, 4)
    assert (status != 0) == (mode is ShieldMode.REDIRECT)  # refused; or done in the overlay


def test_metadata_inside_the_scratch_folder_may_change(
    environment: dict[str, str], tmp_path: Path, null: int
) -> None:
    if ShieldMode.REDIRECT not in available_modes():
        pytest.skip("this machine does not allow redirect mode")
    script = 'cd "$TMPDIR" && echo 1 > x && chmod 600 x && touch -d @5 x && stat -c %a-%Y x'
    reading, writing = os.pipe()
    command = ["/bin/sh", "-c", script]
    with start(
        command, ShieldMode.REDIRECT, environment, tmp_path, stdout=writing, stderr=2
    ) as process:
        os.close(writing)
        with open(reading) as output:
            assert output.read() == "600-5\n"
        assert process.wait(10) == 0


def test_sweep_leaves_running_trials_alone(
    mode: ShieldMode, environment: dict[str, str], tmp_path: Path, null: int
) -> None:
    abandoned, lock = scratch.create(environment, upper_layer=False)
    os.close(lock)
    with start(["sleep", "300"], mode, environment, tmp_path, stdout=null, stderr=2) as process:
        assert scratch.sweep(environment) == [abandoned]
        time.sleep(0.05)
        assert os.path.isdir(process.scratch) and process.poll() is None
