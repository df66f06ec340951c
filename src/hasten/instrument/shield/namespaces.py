"""Puts the trial into namespaces of its own and runs it below a tiny init."""

import os
import signal
from collections.abc import Callable, Sequence

from hasten.instrument.shield import kernel


def enter() -> bool:
    """Leaves the user's namespaces; the next forked child is process 1 of the new ones.

    Returns:
        Whether it took a user namespace (an ordinary user, or root without the capability).

    Raises:
        OSError: the kernel, a container or a security policy refuses.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        try:
            kernel.unshare(kernel.CLONE_NEWPID | kernel.CLONE_NEWNS)
            return False
        except PermissionError:  # root of a container: try it the way an ordinary user does
            pass
    kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{uid} {uid} 1")
    _write("/proc/self/gid_map", f"{gid} {gid} 1")
    return True


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def run_init(
    become_script: Callable[[], None], pass_fds: Sequence[int], report: Callable[[int], None]
) -> None:
    """Is process 1: starts the script, adopts and reaps orphans, reports how the script ended.

    When it returns and the process exits, the kernel kills whatever else is in the namespace.

    Args:
        become_script: called in the script's process; does not return unless exec failed.
        pass_fds: the script's own descriptors, closed here so that their end shows.
        report: is given the script's wait status; process 1 cannot die of a signal by itself.
    """
    script = os.fork()
    if script == 0:
        become_script()
        os._exit(127)
    close_streams()
    for descriptor in pass_fds:
        os.close(descriptor)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == script:
            report(status)
            return


def close_streams() -> None:
    """Lets go of the script's output, so that who reads it sees the end."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)


def make_mounts_private() -> None:
    """From here on no mount made in this namespace shows in the user's."""
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", "none", kernel.MS_REC | kernel.MS_PRIVATE)


def die_with(parent_pipe: int) -> None:
    """Ties this process to its parent, also when the parent ended a moment ago.

    Args:
        parent_pipe: the parent writes one byte to it after the fork.
    """
    kernel.die_with_parent(signal.SIGKILL)
    if not os.read(parent_pipe, 1):
        os._exit(1)
