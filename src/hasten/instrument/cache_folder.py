"""The folder under the user's cache in which items are kept from one run to the next.

One entry is two files: `<key>.items`, the items, and `<key>.json`, what they are. An entry in use
is locked through the second; the kernel lets go of the lock with the last process that holds it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_SHARE = 0.25  # of what is free on the disk may be used, all entries together


def base() -> Path | None:
    """hasten's folder for what is kept between runs; None where the user has no home."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    # A relative path is to be ignored, says the XDG base directory specification.
    if not os.path.isabs(root):
        root = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root) / "hasten" if os.path.isabs(root) else None


def folder() -> Path:
    """Where kept items are; need not exist.

    Raises:
        FileNotFoundError: there is no place for them.
    """
    root = base()
    if root is None:  # a container's user without an entry in /etc/passwd
        raise FileNotFoundError(errno.ENOENT, "no home folder, and XDG_CACHE_HOME is not set")
    return root / "items"


@dataclass(frozen=True)
class Entry:
    """The kept items of one dataset.

    Attributes:
        key: the name of its files.
        size: bytes on the disk.
        used: when it was last opened, seconds since the epoch.
        what: the dataset, for a user.
        busy: a process is using it.
    """

    key: str
    size: int
    used: float
    what: str
    busy: bool


def entries(where: Path | None = None) -> list[Entry]:
    """All entries, the one used last first."""
    if where is None and base() is None:
        return []
    found = []
    for path in sorted((where or folder()).glob("*.items")):
        about = path.with_suffix(".json")
        with contextlib.suppress(OSError):
            used = (about if about.exists() else path).stat().st_mtime
            size = path.stat().st_blocks * 512  # it has holes: its length says nothing
            found.append(Entry(path.stem, size, used, _what(about), _busy(about)))
    return sorted(found, key=lambda entry: -entry.used)


def clear(where: Path | None = None) -> tuple[int, int]:
    """Remove every entry that no process uses.

    Returns:
        How many were removed, and their bytes.

    Raises:
        OSError: one could not be removed.
    """
    gone = [entry for entry in entries(where) if not entry.busy]
    for entry in gone:
        _remove(where or folder(), entry)
    return len(gone), sum(entry.size for entry in gone)


def claim(key: str, what: str, wanted: int, where: Path | None = None) -> tuple[Path, int, int]:
    """Make room for an entry and lock it for this process and its forks.

    Args:
        key: of the entry.
        what: the dataset, for a user.
        wanted: bytes that its items need.

    Returns:
        The path of its items, the bytes that it may have, and the lock: a file descriptor.

    Raises:
        OSError: the folder can't be written.
    """
    base = where or folder()
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(base / f"{key}.json", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        data = json.dumps({"what": what, "made": time.time()}).encode()
        os.pwrite(lock, data, 0)
        os.ftruncate(lock, len(data))
        return base / f"{key}.items", _room(base, key, wanted), lock
    except BaseException:
        os.close(lock)
        raise


def _room(base: Path, key: str, wanted: int) -> int:
    """Bytes that an entry may have; the ones unused for longest go where there are too many."""
    held = {entry.key: entry for entry in entries(base)}
    free = shutil.disk_usage(base).free
    most = int(_SHARE * (free + sum(entry.size for entry in held.values())))
    others = [entry for entry in held.values() if entry.key != key]
    for entry in sorted(others, key=lambda entry: entry.used):
        if sum(e.size for e in others) + wanted <= most:
            break
        if not entry.busy:
            _remove(base, entry)
            others.remove(entry)
    return max(0, min(wanted, most - sum(entry.size for entry in others)))


def _remove(base: Path, entry: Entry) -> None:
    # Only names are removed: a process that has opened it meanwhile keeps what it has.
    for suffix in (".items", ".json"):
        (base / f"{entry.key}{suffix}").unlink(missing_ok=True)


def _what(about: Path) -> str:
    try:
        read: Any = json.loads(about.read_text(encoding="utf-8"))
        return str(read["what"])
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"


def _busy(about: Path) -> bool:
    with _opened(about) as descriptor:
        if descriptor is None or fcntl is None:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        return False


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)
