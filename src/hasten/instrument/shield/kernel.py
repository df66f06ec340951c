"""The Linux system calls that the shield needs and Python's ``os`` lacks.

Imported by the keeper before the script starts, so it imports nothing heavy.
"""

import ctypes
import os
import platform
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38

_MOUNT_SETATTR = 442  # the same number on every architecture, as are Landlock's
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def machine() -> str:
    """The architecture, as the tables of system call numbers name it."""
    return platform.machine()


def syscall(number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """Makes one raw system call.

    Raises:
        OSError: the kernel refused; ``errno`` says why.
    """
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result: int = _libc.syscall(ctypes.c_long(number), *converted)
    return _checked(result)


def seccomp(operation: int, flags: int, argument: ctypes.Array[ctypes.c_char]) -> int:
    """Calls seccomp(2); an unknown architecture counts as a refusal."""
    return syscall(_number(_SECCOMP), operation, flags, argument)


def unshare(flags: int) -> None:
    """Moves this process (its children, for CLONE_NEWPID) into new namespaces."""
    _checked(_libc.unshare(flags))


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    """Calls mount(2)."""
    _checked(
        _libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            os.fsencode(kind),
            ctypes.c_ulong(flags),
            os.fsencode(options) if options else None,
        ),
        target,
    )


def bind(source: str, target: str, *, recursive: bool = False) -> None:
    """Makes ``source`` appear at ``target`` as well."""
    mount(source, target, "none", MS_BIND | (MS_REC if recursive else 0))


def make_readonly(path: str, *, recursive: bool = False) -> None:
    """Turns the mount at ``path`` (and all below it) read-only in this namespace."""
    # Four 64-bit fields: attributes to set, to clear, propagation, user namespace.
    attributes = ctypes.create_string_buffer(struct.pack("=4Q", _MOUNT_ATTR_RDONLY, 0, 0, 0), 32)
    flags = _AT_RECURSIVE if recursive else 0
    try:
        syscall(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), flags, attributes, 32)
    except OSError as error:
        if error.errno != 38 or recursive:  # ENOSYS: older than Linux 5.12
            raise
        # statvfs reports the flags that a remount must repeat; the bits agree up to MS_NOEXEC.
        kept = os.statvfs(path).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
        mount("none", path, "none", MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def enter_root(path: str) -> None:
    """Makes the mount at ``path`` the root folder and lets go of the old one."""
    os.chdir(path)
    syscall(_number(_PIVOT_ROOT), b".", b".")
    # The old root now lies on top of the new one, at "."
    _checked(_libc.umount2(b".", MNT_DETACH))
    os.chdir("/")


def die_with_parent(signal_number: int) -> None:
    """Asks for ``signal_number`` when the parent ends; a change of credentials resets it."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)


def adopt_orphans() -> None:
    """Makes orphaned descendants (daemons) children of this process instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def refuse_new_privileges() -> None:
    """Without it an ordinary user may install neither Landlock rules nor a filter."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    _checked(_libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero))


def _number(table: dict[str, int]) -> int:
    try:
        return table[machine()]
    except KeyError:
        raise OSError(38, f"no system call numbers for {machine()}") from None


def _checked(result: int, path: str | None = None) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)
    return result
