"""Memory that processes share: anonymous, or a file; it outlives none of them by a lock.

A region can be written by any process that was forked from its maker, and by one that was sent
it, as long as the maker lives. There is nothing in it that a killed process could leave locked.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Region:
    """A file descriptor and its mapping.

    Attributes:
        size: bytes, of which the file system may hold fewer: what was never written takes no room.
        view: the mapping, to be read. What may fail for want of space is written by `write`.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor, self.size = descriptor, size
        self._map = mmap.mmap(descriptor, size)
        self.view = memoryview(self._map)

    @classmethod
    def anonymous(cls, size: int) -> Region:
        """Memory that is gone with the last process that holds it.

        Raises:
            OSError: there is none.
        """
        if hasattr(os, "memfd_create"):  # not limited by /dev/shm, which is small in containers
            descriptor = os.memfd_create("hasten-items", os.MFD_CLOEXEC)
        else:
            descriptor, path = tempfile.mkstemp(prefix="hasten-items-")
            os.unlink(path)
        os.ftruncate(descriptor, size)
        return cls(descriptor, size)

    @classmethod
    def file(cls, path: Path, size: int) -> Region:
        """A file of at least this size, which is made where it is missing.

        Raises:
            OSError: it can't be opened or written.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
            return cls(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise

    @property
    def descriptor(self) -> int:
        """Of the file, for locks."""
        return self._descriptor

    def write(self, parts: Sequence[bytes | memoryview], offset: int) -> bool:
        """Write parts one after another; False when there is no space.

        Not through the mapping: a full disk would end the process by a signal.
        """
        wanted = sum(len(part) for part in parts)
        try:
            return os.pwritev(self._descriptor, list(parts), offset) == wanted
        except OSError:
            return False

    def close(self) -> None:
        """Let go of it in this process."""
        self.view.release()
        self._map.close()
        os.close(self._descriptor)

    def __reduce__(self) -> Any:
        # For processes that aren't forked: they open it through their parent, while that lives.
        return _reopen, (os.getpid(), self._descriptor, self.size)


def _reopen(process: int, descriptor: int, size: int) -> Region:
    own = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    return Region(own, size)
