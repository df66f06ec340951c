"""The parent's end of one child: the user's script under the shield, block by block."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO

from hasten.errors import brief
from hasten.instrument import launch as launching
from hasten.instrument.shield import launch as shield
from hasten.instrument.shield.trackers import tracker_environment
from hasten.protocol import Message, decode, encode
from hasten.records import Ended, Hello, Note, Setting
from hasten.tuning import compile_cache

_TAIL = 16_000  # bytes of the script's own output that are kept for an error
_OUTPUT = 64_000_000  # ... and for a metric
_START_SECONDS = 60.0  # until the interpreter answers
_TRACEBACK = "Traceback (most recent call last)"
_EXCEPTION = re.compile(r"(\w+\.)*\w*(Error|Exception|Interrupt)(:|$)")
_END_SECONDS = 30.0  # until a script that has said it is at its end is gone


@dataclass
class Gone(Exception):
    """A child is there no more.

    Attributes:
        kind: "ended" (the script came to its end), "exception", "killed", "hang", "memory".
        status: exit status, negative for a signal, None when it was killed for hanging.
        tail: the last of what the script wrote to its standard error.
        ended: what the child said at its end, if it still could.
    """

    kind: str
    status: int | None
    tail: str
    ended: Ended | None = None
    message: str = ""

    def __str__(self) -> str:
        return self.message or self.kind


@dataclass
class Child:
    """One run of the script. `close` must be called; it is safe to call it twice."""

    argv: tuple[str, ...]
    mode: shield.ShieldMode
    note: Callable[[str], None]
    cwd: str = field(default_factory=os.getcwd)
    observe: bool = False  # with observers, for a diagnosis
    start_setting: Setting = field(default_factory=dict)  # what the process is started for
    pair: int | None = None  # from which seeds, where everything is counted from the start
    counters_only: bool = False  # with `pair`: only what costs nothing
    item_seeds: bool = False
    _socket: socket.socket | None = None
    _process: shield.ShieldedProcess | None = None
    _errors: IO[bytes] | None = None
    _rest: bytes = b""
    _ended: Ended | None = None
    _keep: str = ""  # folder of compiled code
    _asked: float | None = None  # when a command was sent that is not answered yet

    def start(self) -> None:
        """Start the script; returns when its interpreter answers.

        Raises:
            Gone: it did not.
        """
        ours, theirs = socket.socketpair()
        # Unlinked at once: whatever way this process ends, no file of it remains.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, closed in close()
        description = launching.ChildDescription(
            mode="serve",
            socket=theirs.fileno(),
            setting=self.start_setting,
            observe=self.observe,
            pair=self.pair,
            counters_only=self.counters_only,
            item_seeds=self.item_seeds,
        )
        env = launching.environment(description, {**os.environ, **tracker_environment()})
        keep = self._keep = env.get("TORCHINDUCTOR_CACHE_DIR", "")
        try:
            self._process = shield.launch(
                [sys.executable, *self.argv],
                env=env,
                cwd=self.cwd,
                mode=self.mode,
                pass_fds=(theirs.fileno(),),
                keep=(keep,) if keep else (),
                stdout=self._errors.fileno(),
                stderr=self._errors.fileno(),
            )
        finally:
            theirs.close()
        self._socket = ours
        self.receive(_START_SECONDS, Hello)

    @property
    def describe(self) -> str:
        """One line about what the shield covers."""
        return self._process.describe() if self._process is not None else ""

    def ask(self, command: Message, seconds: float) -> Message:
        """Send a command and wait for its answer.

        Args:
            command: what to do.
            seconds: how long to wait before the child counts as hanging.

        Raises:
            Gone: the child has ended, or had to be killed.
        """
        self.send(command)
        return self.answer(seconds)

    def send(self, command: Message) -> None:
        """Send a command whose answer is taken later, by `answer`.

        Raises:
            Gone: the child has ended.
        """
        assert self._socket is not None
        self._asked = time.time()
        try:
            self._socket.sendall(encode(command))
        except OSError:
            raise self._gone() from None

    def answer(self, seconds: float) -> Message:
        """Wait for the answer to what was sent.

        Raises:
            Gone: the child has ended, or had to be killed.
        """
        answer = self.receive(seconds)
        self._asked = None
        return answer

    def receive(self, seconds: float, kind: type | None = None) -> Message:
        """The next message that is an answer; notes are passed on.

        Raises:
            Gone: the child has ended, or had to be killed.
        """
        deadline = time.monotonic() + seconds
        while True:
            message = decode(self._line(deadline))
            if isinstance(message, Note):
                self.note(message.text)
            elif isinstance(message, Ended):
                self._ended = message
            elif isinstance(message, Hello) and kind is not Hello:
                continue
            else:
                return message

    def _line(self, deadline: float) -> bytes:
        assert self._socket is not None
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._socket], [], [], max(0.0, left))
            if not ready:
                raise self._hanging()
            try:
                data = self._socket.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                raise self._gone()
            self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        return line

    def _hanging(self) -> Gone:
        tail = self._tail()
        self.close()
        return Gone("hang", None, tail, message="no iteration within the time limit")

    def _gone(self) -> Gone:
        assert self._process is not None
        try:
            status: int | None = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            status = None
        tail, ended = self._tail(), self._ended
        self.close()
        return _explain(status, tail, ended)

    def _tail(self, most: int = _TAIL) -> str:
        if self._errors is None:
            return ""
        handle = self._errors.fileno()  # the script writes to the same place in it: no seek
        start = max(0, os.fstat(handle).st_size - most)
        return os.pread(handle, most, start).decode(errors="replace")

    def output(self) -> str:
        """What the script has written so far, to standard output and error; the last 64 MB."""
        return self._tail(_OUTPUT)

    def close(self) -> None:
        """Kill whatever is left of the run and remove its scratch."""
        if self._process is not None:
            self._process.kill()
        if self._socket is not None:
            self._socket.close()
        if self._errors is not None:
            self._errors.close()
        if self._asked is not None and self._keep:  # it may have been compiling
            compile_cache.forget_since(self._keep, self._asked)
        self._process, self._socket, self._errors, self._asked = None, None, None, None


#: Accelerators, Python, torch's allocator on the CPU, and the system.
_NO_MEMORY = re.compile(
    r"out of memory|MemoryError|DefaultCPUAllocator|cannot allocate memory", re.IGNORECASE
)


def _explain(status: int | None, tail: str, ended: Ended | None) -> Gone:
    last = _reason(tail)
    if status == 0:
        return Gone("ended", status, tail, ended, "the script came to its end")
    if status is not None and status < 0:
        name = signal.Signals(-status).name
        if -status == signal.SIGKILL:
            return Gone("memory", status, tail, ended, f"killed ({name}): out of memory?")
        return Gone("killed", status, tail, ended, f"ended by {name}")
    kind = "memory" if _NO_MEMORY.search(last) else "exception"
    return Gone(kind, status, tail, ended, last or f"exit status {status}")


def _reason(tail: str) -> str:
    """The line of a script's last words that says what was the matter.

    It is the last one, unless that is what torch adds to an exception ("Set TORCHDYNAMO_VERBOSE=1
    ...") or what was written after it: then it is the line of the last traceback's exception.
    """
    lines = [line for line in tail.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    if _EXCEPTION.match(last):
        return brief(last)
    start = max((i for i, line in enumerate(lines) if line.startswith(_TRACEBACK)), default=None)
    words = [] if start is None else [i for i in range(start + 1, len(lines)) if lines[i][0] > " "]
    if not words:
        return brief(last)
    line, following = lines[words[0]], lines[words[0] + 1 : words[0] + 2]
    if line.rstrip().endswith(":") and following:  # "backend='inductor' raised:"
        line = f"{line.rstrip()} {following[0].strip()}"
    return brief(line)
