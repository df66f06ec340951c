"""Which mounts a process sees, read from ``/proc/self/mountinfo``."""

import os
from collections.abc import Iterable
from typing import NamedTuple

# Never covered by an overlay: kernel interfaces, where a write is no file of the user's.
KERNEL_KINDS = frozenset(
    (
        "autofs",
        "binfmt_misc",
        "bpf",
        "cgroup",
        "cgroup2",
        "configfs",
        "debugfs",
        "devpts",
        "devtmpfs",
        "efivarfs",
        "fusectl",
        "hugetlbfs",
        "mqueue",
        "nsfs",
        "proc",
        "pstore",
        "rpc_pipefs",
        "securityfs",
        "selinuxfs",
        "sysfs",
        "tracefs",
    )
)
# The kernel (or an honest reading of its documentation) refuses these as an upper layer.
_NO_UPPER_LAYER = frozenset(
    (
        "overlay",
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "9p",
        "vfat",
        "exfat",
        "ecryptfs",
        "lustre",
        "gpfs",
        "beegfs",
        "ceph",
        "afs",
        "virtiofs",
    )
)
_ESCAPES = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"))


class Mount(NamedTuple):
    """One line of mountinfo, as far as the shield needs it."""

    identity: int
    parent: int
    point: str
    kind: str
    writable: bool


def parse(text: str) -> list[Mount]:
    """Reads the lines of a mountinfo file (see proc(5))."""
    return [_parse_line(line) for line in text.splitlines() if line.strip()]


def _parse_line(line: str) -> Mount:
    before, _, after = line.partition(" - ")
    fields, (kind, _, super_options) = before.split(), after.split(" ", 2)
    point = fields[4]
    for escaped, plain in _ESCAPES:
        point = point.replace(escaped, plain)
    options = fields[5].split(",") + super_options.split(",")
    return Mount(int(fields[0]), int(fields[1]), point, kind, "ro" not in options)


def visible(mounts: Iterable[Mount]) -> list[Mount]:
    """The mounts that a path can still reach, parents first.

    A mount is out of reach when another lies on top of it or on top of a folder above it.
    """
    every = list(mounts)
    known = {mount.identity for mount in every}
    roots = [m for m in every if m.parent not in known or m.parent == m.identity]
    return [seen for root in roots for seen in _reachable(root, every)]


def _reachable(mount: Mount, every: list[Mount]) -> list[Mount]:
    children = [m for m in every if m.parent == mount.identity and m is not mount]
    for child in children:
        if child.point == mount.point:  # stacked: the later one is what is seen
            return _reachable(child, every)
    open_children = [
        child
        for child in children
        if not any(is_below(child.point, other.point) for other in children)
    ]
    return [mount] + [seen for child in open_children for seen in _reachable(child, every)]


def is_below(path: str, folder: str) -> bool:
    """Whether ``path`` lies strictly below ``folder`` (both absolute and normal)."""
    return path != folder and path.startswith(folder.rstrip("/") + "/")


def current() -> list[Mount]:
    """The visible mounts of this process."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return visible(parse(file.read()))


def covering(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """The mount that ``path`` lies on, or None when mountinfo does not say."""
    holders = [m for m in mounts if path == m.point or is_below(path, m.point)]
    return max(holders, key=lambda mount: len(mount.point), default=None)


def can_hold_upper_layer(path: str) -> bool:
    """Whether an overlay's upper layer may lie in ``path``, judged by the kind of file system."""
    mount = covering(os.path.realpath(path), current())
    if mount is None:
        return False
    return mount.kind not in _NO_UPPER_LAYER and not mount.kind.startswith("fuse")


def listening_sockets() -> list[str]:
    """The paths of the sockets that programs on this machine have open."""
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as file:
            fields = [line.split(maxsplit=7) for line in file]
    except OSError:  # hidden by a container
        return []
    # The path comes last and is missing for sockets without one; others begin with "@".
    paths = {found[7].rstrip("\n") for found in fields[1:] if len(found) == 8}
    return sorted(path for path in paths if path.startswith("/"))
