"""hasten's cache of compiled code, kept clean of what a killed child has left half written.

A compiler writes its output in place: killed in the middle it leaves a file that is empty or cut
off, and every later compilation of the same graph would load that file and fail.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_LIBRARY = ".so"


def forget_since(folder: str, moment: float) -> None:
    """Remove what was written since `moment` (seconds since the epoch): it may be incomplete."""
    for path, found in _files(folder):
        if found.st_mtime >= moment:
            _remove(path)


def sweep(folder: str) -> None:
    """Remove libraries without content, which a run has left that could not clean up itself."""
    for path, found in _files(folder):
        if path.endswith(_LIBRARY) and found.st_size == 0:
            _remove(path)


def _files(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            with contextlib.suppress(OSError):
                yield path, os.stat(path, follow_symlinks=False)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
