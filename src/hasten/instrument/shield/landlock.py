"""Landlock: the kernel refuses every write outside the trial's folders.

It covers what a process does to files and folders by path: creating, writing, cutting, renaming,
linking, removing. It does not cover a file's mode, owner, times and attributes; `metadata` does.
"""

import ctypes
import os
import struct
from collections.abc import Sequence

from hasten.instrument.shield import kernel

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_WANT_VERSION = 1
_RULE_PATH_BENEATH = 1

_WRITE_FILE = 1 << 1
_MAKE_AND_REMOVE = sum(1 << bit for bit in range(4, 13))
_REFER = 1 << 13  # from version 2: move or link between folders (refused before)
_TRUNCATE = 1 << 14  # from version 3


def version() -> int:
    """The version of Landlock that the kernel offers; 0 when it offers none."""
    try:
        return kernel.syscall(_CREATE_RULESET, None, 0, _WANT_VERSION)
    except OSError:
        return 0


def confine(folders: Sequence[str]) -> None:
    """Restricts this process, and all that it starts, to writing below ``folders``.

    Existing devices stay writable, and so do this process's own entries in /proc.

    Args:
        folders: absolute paths that exist.

    Raises:
        OSError: no Landlock here; nothing was restricted.
    """
    offered = version()
    # Truncation by path needs version 3; with older ones `metadata` looks after it.
    everything = _WRITE_FILE | _MAKE_AND_REMOVE
    everything |= _REFER if offered >= 2 else 0
    everything |= _TRUNCATE if offered >= 3 else 0
    kernel.refuse_new_privileges()
    ruleset = kernel.syscall(_CREATE_RULESET, _buffer(struct.pack("=Q", everything)), 8, 0)
    for folder in folders:
        _allow(ruleset, folder, everything)
    for special in ("/dev", "/proc/self"):
        _allow(ruleset, special, everything & (_WRITE_FILE | _TRUNCATE))
    kernel.syscall(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _buffer(struct.pack("=Qi", rights, handle))
        kernel.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(handle)


def _buffer(data: bytes) -> "ctypes.Array[ctypes.c_char]":
    return ctypes.create_string_buffer(data, len(data))
