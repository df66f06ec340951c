"""Finds and ends every process that descends from this one, and their shared memory.

The caller is a child subreaper (`kernel.adopt_orphans`), so a daemon that forked twice is still a
descendant, and "no child left to wait for" means that nothing of the trial is alive.
"""

import os
import signal
import time

_SHARED_MEMORY = "/dev/shm/"


def living() -> list[int]:
    """The process ids of all descendants, parents first."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            parent = _parent_of(int(entry))
            if parent is not None:
                children.setdefault(parent, []).append(int(entry))
    found = children.get(os.getpid(), [])
    for pid in found:  # grows while it is walked
        found.extend(children.get(pid, []))
    return found


def _parent_of(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may hold anything, so count from its end.
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):  # ended since it was listed
        return None


def kill_all(patience_s: float = 8.0, *, spare: int | None = None) -> list[int]:
    """Sends SIGKILL until no descendant is left, and reaps them.

    Args:
        patience_s: how long to wait for processes that the kernel does not let go of.
        spare: a descendant that is only waited for, since it is itself cleaning up.

    Returns:
        The processes that are still there, which is nearly always none.
    """
    deadline = time.monotonic() + patience_s
    pause = 0.001
    while True:
        for pid in living():
            if pid != spare:
                _signal(pid, signal.SIGKILL)
        if not _reap():
            return []
        if time.monotonic() > deadline:
            return living()
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


def freeze() -> None:
    """Stops every descendant where it is; SIGKILL still ends it."""
    for pid in living():
        _signal(pid, signal.SIGSTOP)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # ended by itself
        return
    except PermissionError:  # runs as somebody else (sudo); shows in the answer of kill_all
        return


def _reap() -> bool:
    """Collects ended children; says whether any child is left."""
    try:
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return True
    except ChildProcessError:
        return False


class SharedMemory:
    """Which files of /dev/shm belong to the trial.

    Without a private /dev/shm (that is overlay mode) other programs of the same user keep files
    there as well. A file counts as the trial's when it is new since the start and a process of the
    trial has it mapped or open, or when its name carries the id of one, as torch's names do.
    """

    def __init__(self) -> None:
        self._before = set(_shared_files())
        self._seen_at: int | None = None
        self._pids: set[int] = set()
        self._ours: set[str] = set()

    def look(self, *, always: bool = False) -> None:
        """Notes the trial's files; does nothing while /dev/shm has not changed."""
        changed = _change_time()
        if changed == self._seen_at and not always:
            return
        self._seen_at = changed
        pids = living()
        self._pids.update(pids)
        if not set(_shared_files()) - self._before:
            return
        for pid in pids:
            self._ours.update(_shared_files_of(pid))

    def remove(self) -> None:
        """Removes what the trial left behind; call it when the trial's processes are gone."""
        marks = {str(pid) for pid in self._pids}
        for name in set(_shared_files()) - self._before:
            if name in self._ours or marks & set(name.replace("-", "_").split("_")):
                _unlink_own(_SHARED_MEMORY + name)


def _shared_files() -> list[str]:
    try:
        return os.listdir(_SHARED_MEMORY)
    except OSError:  # a machine without shared memory
        return []


def _change_time() -> int | None:
    try:
        return os.stat(_SHARED_MEMORY).st_mtime_ns
    except OSError:
        return None


def _shared_files_of(pid: int) -> set[str]:
    paths = []
    try:
        with open(f"/proc/{pid}/maps", errors="surrogateescape") as maps:
            paths += [line.rstrip("\n").partition(_SHARED_MEMORY)[2] for line in maps]
        folder = f"/proc/{pid}/fd"
        links = [os.readlink(f"{folder}/{number}") for number in os.listdir(folder)]
        paths += [link[len(_SHARED_MEMORY) :] for link in links if link.startswith(_SHARED_MEMORY)]
    except OSError:  # ended while it was looked at; what was read still counts
        pass
    return {path for path in paths if path}


def _unlink_own(path: str) -> None:
    try:
        if os.lstat(path).st_uid == os.geteuid():
            os.unlink(path)
    except OSError:  # gone already, or a folder: nothing that a trial's library leaves
        return
