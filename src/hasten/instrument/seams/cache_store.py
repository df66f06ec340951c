"""Where items are kept: entries of fixed size, and behind them chunks that are only added to.

One writer doesn't wait for another. Each takes whole chunks for itself, under a lock of the
kernel that is never waited for and falls with its process, and then writes into them alone. An
entry counts when its checksum is right, so that one that is half written, or written by two at
once, is no entry. The bytes of an item are summed, too, when a process first reads them: a file
that survived a power cut in part is seen.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from collections.abc import Sequence

from hasten.environment import MIB, free_memory
from hasten.instrument.seams.cache_region import Region

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_MAGIC = b"hasten items 1\0\0"
_HEAD = 4096
_NEXT = 64  # where in the head the number of the next free chunk is
_ENTRY = struct.Struct("<QIIQQ")  # offset, length, checksum of the bytes, stamp, checksum of these
_BODY = struct.Struct("<QIIQ")
_NUMBER = struct.Struct("<Q")
_CHUNK = 64 * 1024
_STRIDE = 64  # chunks that a process takes at once at most: 4 MiB
_RESERVE = 512 * MIB  # of memory stays free, whatever the limit says
_TRIES = 3
_LONGEST = 2**31  # bytes of one item


def supported() -> bool:
    """Whether this system has what a store needs."""
    return fcntl is not None and hasattr(os, "pwritev")


class Store:
    """Items by index.

    Attributes:
        items: indices go from 0 to `items` - 1.
        full: this process has seen that no further chunk may be taken.
    """

    def __init__(self, region: Region, items: int, memory: bool) -> None:
        """Use a region; one that is new is all zeros.

        Args:
            region: of the size that `size_for` gives.
            items: how many there are at most.
            memory: it takes memory, so what is free is looked at before it grows.
        """
        self._region, self.items, self._memory = region, items, memory
        self._first = _HEAD + -(-items * _ENTRY.size // 4096) * 4096
        self._chunks = (region.size - self._first) // _CHUNK
        self.full = False
        self._verified = bytearray(items)  # by this process, or by the one that it is a fork of
        self._owner, self._free, self._end = os.getpid(), 0, 0
        self._stride = 1  # doubled with every claim: what a process took and left is wasted
        if bytes(region.view[: len(_MAGIC)]) != _MAGIC:
            region.write([_MAGIC], 0)

    @staticmethod
    def size_for(items: int, limit: int) -> int:
        """Bytes of a region for `limit` bytes of items, in whole chunks."""
        return _HEAD + -(-items * _ENTRY.size // 4096) * 4096 + max(1, limit // _CHUNK) * _CHUNK

    @property
    def used(self) -> int:
        """Bytes in chunks that were taken."""
        return min(self._next(), self._chunks) * _CHUNK

    def read(self, index: int, stamp: int) -> memoryview | None:
        """The bytes of an item; None: it isn't there, or has another stamp."""
        start = _HEAD + index * _ENTRY.size
        view = self._region.view
        offset, length, checksum, kept, own = _ENTRY.unpack_from(view, start)
        if not length or kept != stamp or own != _sum(view[start : start + _BODY.size], index):
            return None
        if offset < self._first or offset + length > self._region.size:
            return None
        data = view[offset : offset + length]
        if not self._verified[index]:
            if zlib.crc32(data) != checksum:
                return None
            self._verified[index] = 1
        return data

    def has(self, index: int, stamp: int) -> bool:
        """Whether an item is there."""
        return self.read(index, stamp) is not None

    def write(self, index: int, stamp: int, parts: Sequence[bytes | memoryview]) -> bool:
        """Keep the bytes of an item; False: there is no room for it."""
        length = sum(len(part) for part in parts)
        offset = self._room(length)
        if offset is None or not self._region.write(parts, offset):
            return False
        checksum = 0
        for part in parts:
            checksum = zlib.crc32(part, checksum)
        body = _BODY.pack(offset, length, checksum, stamp)
        self._verified[index] = 0
        entry = body + _NUMBER.pack(_sum(body, index))
        return self._region.write([entry], _HEAD + index * _ENTRY.size)

    # --- room ------------------------------------------------------------------------------

    def _room(self, length: int) -> int | None:
        if self._owner != os.getpid():  # what was taken before the fork is the parent's
            self._owner, self._free, self._end, self._stride = os.getpid(), 0, 0, 1
        length += -length % 64
        if self._free + length > self._end and not self._take(length):
            return None
        offset, self._free = self._free, self._free + length
        return offset

    def _take(self, length: int) -> bool:
        """Take chunks that hold `length` bytes together."""
        least = -(-length // _CHUNK)
        count = max(least, self._stride)
        if self.full or length > _LONGEST:
            return False
        if self._memory and free_memory() - count * _CHUNK < _RESERVE:
            self.full = True
            return False
        first = self._claim(count)
        if first is None and count > least:  # near the end: no more than is needed
            count = least
            first = self._claim(count)
        if first is None:
            return False
        self._stride = min(2 * self._stride, _STRIDE)
        self._free = self._first + first * _CHUNK
        self._end = self._free + count * _CHUNK
        return True

    def _claim(self, count: int) -> int | None:
        descriptor = self._region.descriptor
        for _ in range(_TRIES):
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 8, _NEXT)
            except OSError:  # another one is at it, for microseconds
                time.sleep(0.0005)
                continue
            try:
                first = self._next()
                if first + count > self._chunks:
                    self.full = self.full or first >= self._chunks
                    return None
                ours = self._region.write([_NUMBER.pack(first + count)], _NEXT)
                return first if ours else None
            finally:
                fcntl.lockf(descriptor, fcntl.LOCK_UN, 8, _NEXT)
        return None

    def _next(self) -> int:
        return int(_NUMBER.unpack_from(self._region.view, _NEXT)[0])

    def close(self) -> None:
        """Let go of it in this process."""
        self._region.close()


def _sum(body: bytes | memoryview, index: int) -> int:
    # Not zero, and of this place: an entry that was copied elsewhere is none.
    return 1 << 40 | index << 32 & 0xFF00000000 | zlib.crc32(body, index & 0xFFFFFFFF)
