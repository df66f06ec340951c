"""Runs a program so that nothing of it remains: no changed file, no process, no temporary file.

This is the parent's side. See `keeper` for the processes in between, `overlay` and `landlock` for
the two ways of keeping writes away from the user's files.
"""

import functools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from hasten.errors import HastenError
from hasten.instrument.shield import ownership, scratch

# Without site-packages: quicker, and this very copy of hasten even where another is installed. So
# what the keeper imports needs the standard library alone.
_PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))
_KEEPER = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from hasten.instrument.shield.keeper import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)
_START_LIMIT_S = 30.0
_END_LIMIT_S = 10.0


class ShieldError(HastenError):
    """The trial could not be started as asked."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=3)


class ShieldMode(str, Enum):
    """How writes are kept away from the user's files."""

    OVERLAY = "overlay"
    """Each mount is covered by an overlay in namespaces of the trial's own."""
    REDIRECT = "redirect"
    """Python's file functions write elsewhere; the kernel refuses any write they miss."""
    NONE = "none"
    """Files are written. Processes still end with the trial."""


_COVERAGE = {
    ShieldMode.OVERLAY: "no file or shared memory of yours is changed, no process is left",
    ShieldMode.REDIRECT: "no file of yours is changed (Python and its commands write to a copy, "
    "other writes are refused), no process is left",
    ShieldMode.NONE: "FILES ARE NOT SHIELDED: the script writes as it would by itself; no process "
    "is left",
}
_NOT_COVERED = "not shielded: sockets, databases, uploads, raw devices"


class ShieldedProcess:
    """A running trial. Also a context manager, which ends it."""

    def __init__(
        self,
        keeper: "subprocess.Popen[bytes]",
        control: int,
        status: int,
        mode: ShieldMode,
    ) -> None:
        """Made by `launch` only."""
        self._keeper = keeper
        self._control: int | None = control
        self._status: int | None = status
        self._unread = b""
        self._started = False
        self._exit: int | None = None
        self.scratch = ""
        """The folder that takes what the trial writes, until it ends."""
        self.mode = mode
        """What was asked for."""
        self.reason: str | None = None
        """Why the trial ended, when it was not by itself."""
        self.left: list[str] = []
        """What could not be removed; empty unless the machine is in trouble."""
        self.failure: str | None = None
        """Why the script could not be started."""

    @property
    def pid(self) -> int:
        """The process id of the keeper."""
        return self._keeper.pid

    def poll(self) -> int | None:
        """The script's exit status (negative: ended by that signal), None while it runs."""
        self._read(0.0)
        return self._exit

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the script's end.

        Args:
            timeout: seconds, or None for any time.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._exit is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired("the trial", timeout or 0.0)
            self._read(left)
        return self._exit

    def kill(self) -> None:
        """Ends every process of the trial and removes all it wrote; may be called again."""
        self._close_control()
        try:
            self._keeper.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._keeper.kill()  # the guard below it notices and cleans up
            self._keeper.wait()
        self._drain()
        if self.scratch and os.path.lexists(self.scratch) and not scratch.remove(self.scratch):
            self.left.append(f"files in {self.scratch}")

    def describe(self) -> str:
        """One line that says what is covered and what is not."""
        return f"shield {self.mode.value}: {_COVERAGE[self.mode]}; {_NOT_COVERED}"

    def __enter__(self) -> "ShieldedProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _await_start(self) -> None:
        deadline = time.monotonic() + _START_LIMIT_S
        while not self._started and self._exit is None and self.failure is None:
            if time.monotonic() > deadline:
                self.failure = f"did not start within {_START_LIMIT_S:.0f} s"
            self._read(max(0.0, deadline - time.monotonic()))
        if self.failure is not None or not self._started:
            self.kill()
            raise ShieldError(f"shield {self.mode.value}: {self.failure or self.reason}")

    def _read(self, timeout: float | None) -> None:
        """Takes in what the keepers report, waiting for it for at most ``timeout`` seconds."""
        if self._status is None:
            return
        if not select.select([self._status], [], [], timeout)[0]:
            return
        data = os.read(self._status, 1 << 16)
        if not data:
            self._close_status()
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        if event["event"] == "started":
            self._started = True
        elif event["event"] == "scratch":
            self.scratch = event["folder"]
        elif event["event"] == "failed":
            self.failure = self.failure or event["reason"]
        elif event["event"] == "left":
            self.left.append(event["detail"])
        elif self._exit is None:
            self._exit, self.reason = event["status"], event["reason"] or self.failure

    def _drain(self) -> None:
        while self._status is not None:
            self._read(1.0)
            if self._status is not None and not select.select([self._status], [], [], 0)[0]:
                self._close_status()

    def _close_status(self) -> None:
        if self._status is not None:
            os.close(self._status)
            self._status = None
        if self._exit is None:  # nobody was left to report
            self._exit, self.reason = -9, "the keepers of the trial were killed"

    def _close_control(self) -> None:
        if self._control is not None:
            os.close(self._control)
            self._control = None


def launch(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    mode: ShieldMode,
    pass_fds: Sequence[int] = (),
    keep: Sequence[str] = (),
    stdout: int,
    stderr: int,
    cap: int | None = None,
) -> ShieldedProcess:
    """Starts a program as its own shell would, behind the shield; returns when it has begun.

    Args:
        argv: the program (looked up in ``env``'s PATH) and its arguments.
        env: its whole environment. HASTEN_SHIELD is added where the script's process needs
            patches (redirect mode; overlay mode as an ordinary user); the bootstrap calls
            `redirect.install_from`, which removes it. In redirect mode TMPDIR (and
            TRITON_CACHE_DIR, unless set) lead into the scratch folder.
        cwd: the folder it starts in.
        mode: how writes are kept away; one of `available_modes`.
        pass_fds: descriptors that it inherits under the same numbers.
        keep: folders that it may write for real; made when missing.
        stdout: descriptor of its output; the caller keeps its own copy.
        stderr: descriptor of its errors.
        cap: bytes it may write; by default 20 GiB or half the free space.

    Raises:
        ShieldError: it could not be started in this mode; nothing of it is left.
    """
    if shutil.which(argv[0], path=env.get("PATH")) is None:
        raise ShieldError(f"no such program: {argv[0]}")
    kept = [os.path.realpath(folder) for folder in keep]
    for folder in kept:
        os.makedirs(folder, exist_ok=True)
    trial = {
        "argv": list(argv),
        "env": dict(env),
        "cwd": os.path.realpath(cwd),
        "mode": mode.value,
        "pass_fds": list(pass_fds),
        "keep": kept,
        "cap": cap,
    }
    process = _start_keeper(trial, mode, stdout, stderr)
    process._await_start()
    return process


def _start_keeper(
    trial: dict[str, Any], mode: ShieldMode, stdout: int, stderr: int
) -> ShieldedProcess:
    control, control_end = os.pipe()
    status, status_end = os.pipe()
    arguments = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        _KEEPER,
        _PACKAGES,
        str(control),
        str(status_end),
    ]
    try:
        keeper = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=(control, status_end, *trial["pass_fds"]),
            env={"PATH": os.environ.get("PATH", os.defpath), "PYTHONDONTWRITEBYTECODE": "1"},
            cwd="/",
            start_new_session=True,
        )
    except BaseException:
        os.close(control_end)
        os.close(status)
        raise
    finally:
        os.close(control)
        os.close(status_end)
    process = ShieldedProcess(keeper, control_end, status, mode)
    _write_all(control_end, json.dumps(trial).encode() + b"\n")
    return process


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


@functools.cache
def _works(mode: ShieldMode) -> bool:
    """Whether a program that tries to write a file does not manage to, in this mode."""
    if mode is ShieldMode.NONE:
        return True
    # No folder is made for it: a kill at this moment would leave it behind.
    path = os.path.join(tempfile.gettempdir(), f"hasten-probe-{os.urandom(6).hex()}")
    command = ["/bin/sh", "-c", 'echo written > "$0"; exit 0', path]
    null = os.open(os.devnull, os.O_RDWR)
    try:
        with launch(
            command, env=os.environ, cwd="/", mode=mode, stdout=null, stderr=null
        ) as process:
            process.wait(_START_LIMIT_S)
    except (ShieldError, OSError, subprocess.TimeoutExpired):
        return False
    finally:
        os.close(null)
    if not os.path.exists(path):
        return True
    os.unlink(path)
    return False


def available_modes(folder: str | None = None) -> list[ShieldMode]:
    """The modes that work on this machine, tried out once; the best first, NONE always last.

    Args:
        folder: the script's. Where it holds files of other owners or groups, redirect mode comes
            first for an ordinary user, whose overlay could not change those.
    """
    modes = [mode for mode in ShieldMode if _works(mode)]
    first_two = {ShieldMode.OVERLAY, ShieldMode.REDIRECT}
    if folder is not None and first_two <= set(modes) and not ownership.is_overlay_fit(folder):
        modes[:2] = [ShieldMode.REDIRECT, ShieldMode.OVERLAY]
    return modes
