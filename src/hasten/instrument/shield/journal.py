"""Which folders are mirrored: known to all processes of a trial, at the price of one comparison.

A counter in shared memory moves with every change, so a process notices another's change when it
next looks at a path, and only then reads the list again.
"""

import fcntl
import mmap
import os
import posix
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Journal:
    """The list of mirrored folders, in the scratch folder."""

    def __init__(self, scratch: str, forget: Callable[[], None]) -> None:
        """Joins the trial's list, or begins it.

        Args:
            scratch: the trial's folder.
            forget: called when what was looked up before may no longer be right.
        """
        self.roots: set[str] = set()
        self._path = os.path.join(scratch, "mirrored")
        self._forget = forget
        self._lock = threading.RLock()
        os.register_at_fork(after_in_child=self._renew_lock)  # a thread may hold it at that moment
        self._version = _shared_counter(os.path.join(scratch, "version"))
        self._seen = b""
        self.refresh()

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()

    def refresh(self) -> None:
        """Takes in what other processes of the trial have mirrored."""
        if self._version[:8] != self._seen:
            self._load()

    def _load(self) -> None:
        self._seen = self._version[:8]
        self._forget()
        lines = _read_all(self._path).splitlines()
        self.roots = {os.fsdecode(bytes.fromhex(line.decode())) for line in lines}

    @contextmanager
    def changing(self) -> Iterator["Change"]:
        """Keeps out the trial's other threads and processes, and tells them afterwards."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with self._lock:
            descriptor = posix.open(self._path, flags, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                self.refresh()
                yield Change(descriptor)
                self._announce()
            finally:
                posix.close(descriptor)

    def _announce(self) -> None:
        (value,) = struct.unpack("=Q", self._version[:8])
        self._version[:8] = struct.pack("=Q", value + 1)
        self._load()


class Change:
    """One change of the list, while it is locked."""

    def __init__(self, descriptor: int) -> None:
        """Made by `Journal.changing` only."""
        self._descriptor = descriptor

    def add(self, folder: str) -> None:
        """Notes that the mirror of ``folder`` is complete."""
        # In hexadecimal, since a path may hold any byte, line ends included.
        posix.write(self._descriptor, os.fsencode(folder).hex().encode() + b"\n")


def _shared_counter(path: str) -> mmap.mmap:
    descriptor = posix.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    posix.ftruncate(descriptor, mmap.PAGESIZE)
    shared = mmap.mmap(descriptor, mmap.PAGESIZE)
    posix.close(descriptor)
    return shared


def _read_all(path: str) -> bytes:
    try:
        descriptor = posix.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # nothing mirrored so far
        return b""
    try:
        return posix.read(descriptor, posix.fstat(descriptor).st_size)
    finally:
        posix.close(descriptor)
