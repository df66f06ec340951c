"""Renaming folders under an overlay that an ordinary user made.

There the kernel refuses (EXDEV) to rename a folder that was not made in the trial. The script would
fail where it succeeds by itself, so such a folder is copied into the trial's layer first.
"""

import errno
import os
import shutil
import stat
from collections.abc import Callable
from typing import Any

from hasten.instrument import patching
from hasten.instrument.shield.old_pathlib import replace_in_old_pathlib


def install() -> None:
    """Replaces ``os.rename`` and ``os.replace`` in this process; once a process."""
    for name in ("rename", "replace"):
        native = getattr(os, name)
        new = _with_copy(name, native)
        patching.replace(os, name, new)
        replace_in_old_pathlib(name, native, new)


def _with_copy(name: str, native: Callable[..., None]) -> Callable[..., None]:
    def rename(src: Any, dst: Any, **kwargs: Any) -> None:
        try:
            native(src, dst, **kwargs)
        except OSError as error:
            if error.errno != errno.EXDEV or kwargs or not _same_overlay(src, dst):
                raise
            _copy_then_rename(native, os.fsdecode(src), os.fsdecode(dst))

    rename.__name__ = rename.__qualname__ = name
    return rename


def _same_overlay(src: Any, dst: Any) -> bool:
    """Whether it would be a plain rename of a folder outside of the overlay."""
    found = os.lstat(src)
    beside = os.path.dirname(os.path.abspath(os.fsdecode(dst)))
    return stat.S_ISDIR(found.st_mode) and found.st_dev == os.stat(beside).st_dev


def _copy_then_rename(native: Callable[..., None], src: str, dst: str) -> None:
    src = src.rstrip("/")
    copy = f"{src}.{os.urandom(6).hex()}"
    try:
        shutil.copytree(src, copy, symlinks=True)
        native(copy, dst)  # the kernel still decides whether dst may be replaced
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        raise
    shutil.rmtree(src)
