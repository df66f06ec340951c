"""The folder that takes whatever a trial writes: made, measured, locked and removed here.

A trial's scratch folder is alive for as long as somebody holds the lock on its ``lock`` file. The
lock is inherited over fork and released by the kernel, so it needs no process ids that may be
reused and it is right across containers, too.
"""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator, Mapping

from hasten.instrument.shield import mounts

PREFIX = "trial-"
_TEMPORARY_BASE = "hasten-scratch-"
_GIB = 1 << 30
_DEFAULT_CAP = 20 * _GIB
# A socket's path may have 108 bytes, and sockets are made in the temporary folder of a trial.
_LONGEST_BASE = 48


def bases(environment: Mapping[str, str]) -> list[str]:
    """Folders that may hold scratch folders, the preferred one first; they need not exist."""
    if environment.get("HASTEN_SCRATCH"):
        return [os.path.abspath(environment["HASTEN_SCRATCH"])]
    user = f"{_TEMPORARY_BASE}{os.geteuid()}"
    temporary = environment.get("TMPDIR") or "/tmp"
    home = os.path.join(environment.get("HOME") or "/", ".cache", "hasten", "scratch")
    found = [home] if len(home) <= _LONGEST_BASE else []
    found += [os.path.join(folder, user) for folder in (temporary, "/var/tmp", "/tmp")]
    return list(dict.fromkeys(found))


def create(environment: Mapping[str, str], *, upper_layer: bool) -> tuple[str, int]:
    """Makes a scratch folder.

    Args:
        environment: names the preferred place (HASTEN_SCRATCH, HOME, TMPDIR).
        upper_layer: prefer a file system that can hold an overlay's upper layer.

    Returns:
        The folder and a descriptor that holds its lock. The folder is alive until every copy of
        the descriptor is closed.

    Raises:
        OSError: no place is writable.
    """
    problem: OSError | None = None
    usable = []
    for wanted in bases(environment):
        try:
            os.makedirs(wanted, mode=0o700, exist_ok=True)
            base = os.path.realpath(wanted)
            if not upper_layer or mounts.can_hold_upper_layer(base):
                return _create_in(base)
            usable.append(base)
        except OSError as error:
            problem = error
    if usable:
        return _create_in(usable[0])
    raise problem or OSError(errno.EROFS, "no folder for scratch files")


def _create_in(base: str) -> tuple[str, int]:
    if os.stat(base).st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "the scratch folder belongs to somebody else", base)
    folder = os.path.join(base, PREFIX + os.urandom(6).hex())
    # Makes the base as well: the end of another trial may have removed it a moment ago.
    os.makedirs(folder, 0o700)
    lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # a file system without locks: nobody could sweep it safely
        os.close(lock)
        remove(folder)
        raise
    os.write(lock, f"pid {os.getpid()}, {time.ctime()}\n".encode())
    return folder, lock


def sweep(environment: Mapping[str, str] | None = None) -> list[str]:
    """Removes the scratch folders whose trial is gone (killed together with its keepers).

    Returns:
        The folders that were removed.
    """
    removed = []
    for base in bases(os.environ if environment is None else environment):
        for folder in _trials_in(base):
            if _is_abandoned(folder) and remove(folder):
                removed.append(folder)
    return removed


def _trials_in(base: str) -> list[str]:
    try:
        return [os.path.join(base, n) for n in os.listdir(base) if n.startswith(PREFIX)]
    except OSError:  # never made, or not ours
        return []


def _is_abandoned(folder: str) -> bool:
    try:
        lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:  # being made at this moment, or half removed long ago
        return time.time() - os.lstat(folder).st_mtime > 60
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(lock)


def remove(folder: str) -> bool:
    """Removes a scratch folder, whatever permissions the trial gave to what lies in it.

    The lock goes last, so that a removal that is cut short is taken up again by `sweep`.

    Returns:
        Whether nothing is left of it.
    """
    for name in _names(folder):
        if name != "lock":
            _remove_tree(os.path.join(folder, name))
    _remove_tree(folder)
    _remove_empty_base(os.path.dirname(folder))
    return not os.path.lexists(folder)


def _remove_empty_base(base: str) -> None:
    """A base among the temporary files is itself one; another trial's folder keeps it."""
    if os.path.basename(base).startswith(_TEMPORARY_BASE):
        try:
            os.rmdir(base)
        except OSError:  # in use
            return


def _remove_tree(path: str) -> None:
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
        for name in _names(path):
            _remove_tree(os.path.join(path, name))
        os.rmdir(path)
    except OSError:
        # Left for the caller's final look: `remove` answers whether anything remains.
        return


def _names(folder: str) -> list[str]:
    try:
        os.chmod(folder, 0o700)  # an overlay's work folder has mode 000
        return os.listdir(folder)
    except OSError:
        return []


class SizeWatch:
    """Tells when a trial has written too much, at a cost that stays far below the trial's."""

    def __init__(self, folder: str, cap: int | None) -> None:
        self._folder = folder
        free = free_bytes(folder)
        self._cap = min(_DEFAULT_CAP, free // 2) if cap is None else cap
        # Files that were deleted while open do not show in the folder, only as space gone.
        self._least_free = min(free // 4, _GIB)
        self._next = 0.0

    def complaint(self) -> str | None:
        """The reason to end the trial, or None; looks only when it is time to look again."""
        now = time.monotonic()
        if now < self._next:
            return None
        used = sum(_sizes(self._folder))
        took = time.monotonic() - now
        self._next = now + max(0.5, 50 * took)
        if used > self._cap:
            return f"wrote more than {_readable(self._cap)} of scratch files"
        if free_bytes(self._folder) < self._least_free:
            return "left less than a quarter of the free disk space"
        return None


def free_bytes(folder: str) -> int:
    """Bytes that an ordinary user may still write to the file system of ``folder``."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _sizes(folder: str) -> Iterator[int]:
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.lstat(os.path.join(parent, name)).st_blocks * 512
            except OSError:  # removed since it was listed
                continue


def _readable(size: int) -> str:
    return f"{size / _GIB:.1f} GiB" if size >= _GIB else f"{size / (1 << 20):.0f} MiB"
