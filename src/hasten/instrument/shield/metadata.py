"""Keeps a trial from changing modes, owners, times and attributes of files outside its folders.

Landlock does not cover those calls (``touch`` on an existing file would still set its time). A
seccomp filter stops each of them and asks the process above, which looks where the path leads and
lets the call go on or answers "permission denied". They are rare, so nothing else gets slower.

The look and the call are two moments, so this is no defence against a program that means harm.
"""

import ctypes
import fcntl
import os
import struct
from collections.abc import Sequence

from hasten.instrument.shield import kernel

# Where the path is in the arguments: (folder descriptor, path, flags); None when there is none.
_PLAIN, _AT_WITHOUT_FLAGS = (None, 0, None), (0, 1, None)
_BY_DESCRIPTOR = (0, None, None)
_Place = tuple[int | None, int | None, int | None]
_PLACES: dict[str, _Place] = {
    "chmod": _PLAIN,
    "fchmod": _BY_DESCRIPTOR,
    "fchmodat": _AT_WITHOUT_FLAGS,
    "fchmodat2": (0, 1, 3),
    "chown": _PLAIN,
    "lchown": _PLAIN,
    "fchown": _BY_DESCRIPTOR,
    "fchownat": (0, 1, 4),
    "utime": _PLAIN,
    "utimes": _PLAIN,
    "futimesat": _AT_WITHOUT_FLAGS,
    "utimensat": (0, 1, 3),
    "setxattr": _PLAIN,
    "lsetxattr": _PLAIN,
    "fsetxattr": _BY_DESCRIPTOR,
    "removexattr": _PLAIN,
    "lremovexattr": _PLAIN,
    "fremovexattr": _BY_DESCRIPTOR,
    "truncate": _PLAIN,
}
_NOT_FOLLOWING = ("lchown", "lsetxattr", "lremovexattr")
_NUMBERS = {
    "x86_64": "truncate 76 chmod 90 fchmod 91 chown 92 fchown 93 lchown 94 utime 132 setxattr 188 "
    "lsetxattr 189 fsetxattr 190 removexattr 197 lremovexattr 198 fremovexattr 199 utimes 235 "
    "fchownat 260 futimesat 261 fchmodat 268 utimensat 280 fchmodat2 452",
    "aarch64": "setxattr 5 lsetxattr 6 fsetxattr 7 removexattr 14 lremovexattr 15 fremovexattr 16 "
    "truncate 45 fchmod 52 fchmodat 53 fchownat 54 fchown 55 utimensat 88 fchmodat2 452",
}
_AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_SET_MODE_FILTER, _NEW_LISTENER = 1, 8
_ALLOW, _ASK = 0x7FFF0000, 0x7FC00000
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_GO_ON = 1
_EPERM = 1


def install() -> int:
    """Filters this process and all that it starts; needs `kernel.refuse_new_privileges` first.

    Returns:
        A descriptor to hand to the process above, for `Guard`.

    Raises:
        OSError: seccomp is not available here.
    """
    program = _program(kernel.machine())
    code = ctypes.create_string_buffer(program, len(program))
    count = len(program) // 8
    header = struct.pack("HxxxxxxP", count, ctypes.addressof(code))
    buffer = ctypes.create_string_buffer(header, len(header))
    return kernel.seccomp(_SET_MODE_FILTER, _NEW_LISTENER, buffer)


def _program(machine: str) -> bytes:
    numbers = sorted(_names(machine))
    steps = [(_LOAD, 0, 0, 4), (_JUMP_IF_EQUAL, 0, len(numbers) + 1, _AUDIT_ARCHITECTURE[machine])]
    steps += [(_LOAD, 0, 0, 0)]
    for index, number in enumerate(numbers):
        steps.append((_JUMP_IF_EQUAL, len(numbers) - index, 0, number))
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ASK)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _names(machine: str) -> dict[int, str]:
    words = _NUMBERS.get(machine, "").split()
    if not words:
        raise OSError(38, f"no system call numbers for {machine}")
    return {int(number): name for name, number in zip(words[::2], words[1::2], strict=True)}


class Guard:
    """Answers the filtered calls; lives in the process above the script."""

    def __init__(self, listener: int, folders: Sequence[str]) -> None:
        """Takes the listener's descriptor and the folders where everything is allowed."""
        self._listener = listener
        self._folders = [os.path.realpath(folder).rstrip("/") + "/" for folder in folders]
        self._call_names = _names(kernel.machine())

    def answer(self) -> bool:
        """Deals with one waiting call; False when no process is left that could make any."""
        request = bytearray(80)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, request)
        except FileNotFoundError:  # the caller was killed, or the last one has gone
            return self._has_callers()
        identity, pid, _, number, _, _, *arguments = struct.unpack("=QIIiIQ6Q", request)
        allowed = self._allows(pid, self._call_names.get(number, ""), arguments)
        error, flags = (0, _GO_ON) if allowed else (-_EPERM, 0)
        try:
            fcntl.ioctl(self._listener, _SEND, struct.pack("=QqiI", identity, 0, error, flags))
        except FileNotFoundError:  # killed while it waited
            return True
        return True

    def _has_callers(self) -> bool:
        import select

        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        return not any(event & select.POLLHUP for _, event in poll.poll(0))

    def _allows(self, pid: int, name: str, arguments: list[int]) -> bool:
        try:
            target = _target(pid, name, arguments)
        except (OSError, KeyError):  # not to be read (a stricter ptrace policy): then never
            return False
        if not target.startswith("/"):  # a pipe, a socket, memory without a name
            return True
        return any((target + "/").startswith(folder) for folder in self._folders)


def _target(pid: int, name: str, arguments: list[int]) -> str:
    """The file that a call is about, as far as its links lead."""
    at, path_at, flags_at = _PLACES[name]
    path = "" if path_at is None else _read_text(pid, arguments[path_at])
    descriptor = _AT_FDCWD if at is None else ctypes.c_int32(arguments[at] & 0xFFFFFFFF).value
    flags = 0 if flags_at is None else arguments[flags_at]
    if path.startswith("/proc/self/"):
        path = f"/proc/{pid}/" + path[len("/proc/self/") :]
    link = "cwd" if descriptor == _AT_FDCWD else f"fd/{descriptor}"
    base = "/" if path.startswith("/") else os.readlink(f"/proc/{pid}/{link}")
    if not path:
        return base
    joined = os.path.join(base, path)
    if name in _NOT_FOLLOWING or flags & _AT_SYMLINK_NOFOLLOW:
        return os.path.join(os.path.realpath(os.path.dirname(joined)), os.path.basename(joined))
    return os.path.realpath(joined)


def _read_text(pid: int, address: int) -> str:
    if address == 0:  # utimensat without a path is about the descriptor
        return ""
    text = b""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        while b"\0" not in text and len(text) < 4096:
            # No read across a page border: the next page may not be mapped.
            memory.seek(address + len(text))
            piece = memory.read(4096 - (address + len(text)) % 4096)
            if not piece:
                break
            text += piece
    return os.fsdecode(text.partition(b"\0")[0])
