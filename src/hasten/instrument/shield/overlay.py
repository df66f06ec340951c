"""Builds the view of the file system in which a trial runs: all readable, no write comes through.

Runs in the trial's first process, inside its own mount namespace. Every writable mount is covered
by an overlay whose upper layer lies in the scratch folder; what cannot be covered is read-only.
"""

import errno
import os
import stat
from collections.abc import Sequence

from hasten.instrument.shield import kernel, mounts
from hasten.instrument.shield.mounts import Mount, is_below

# Larger files that cannot be covered (they are mount points themselves, or lie beside one where
# the kernel does not allow an overlay over both) are read-only instead of copied.
_LARGEST_COPY = 64 << 20
_MOST_SOCKETS = 300
_SHARED_TEMPORARY = ("/tmp", "/var/tmp")


class View:
    """The new root folder, while it is being built below ``<scratch>/root``."""

    def __init__(self, scratch: str, *, in_user_namespace: bool) -> None:
        """Prepares an empty view.

        Args:
            scratch: the trial's folder; takes layers, copies and the mount point of the root.
            in_user_namespace: the kernel then refuses an overlay over a folder that has mounts
                below it, so such folders are put together from their entries.
        """
        self.root = os.path.join(scratch, "root")
        self._layers = os.path.join(scratch, "layers")
        self._confined = in_user_namespace
        self._mounts = mounts.current()
        self._count = 0
        self._overlaid: set[str] = set()
        os.makedirs(self.root)

    def build(self, scratch: str, cwd: str, keep: Sequence[str], *, in_memory: bool) -> None:
        """Mounts everything; the caller then enters `root`.

        Args:
            scratch: hidden in the view, for the kernel answers ELOOP where a layer is met again.
            cwd: the script's folder, which gets an overlay of its own where it has to.
            keep: folders that stay writable for real.
            in_memory: no disk can hold the upper layers, so they live in memory.
        """
        os.makedirs(self._layers)
        if in_memory:
            kernel.mount("tmpfs", self._layers, "tmpfs", options="mode=700,size=50%")
        if self._confined or not self._cover_mounts():
            self._compose_root()
        for folder in (cwd, *_SHARED_TEMPORARY):
            if self._confined and not _is_own(folder):
                self._cover_foreign(os.path.realpath(folder))
        self._cover_kernel_folders()
        self._show_sockets()
        kernel.mount("tmpfs", self._inside(scratch), "tmpfs", kernel.MS_RDONLY, "size=4k,mode=755")
        for folder in keep:
            self._keep(folder)

    def _inside(self, path: str) -> str:
        return self.root + path if path != "/" else self.root

    # -- as real root: one overlay a mount ------------------------------------------------------

    def _cover_mounts(self) -> bool:
        """Covers each mount by one overlay; False when the kernel refuses it for the root."""
        for mount in self._mounts:
            if self._is_kernel_folder(mount.point):
                continue
            try:
                self._cover_mount(mount)
            except OSError as error:
                if mount.point == "/":
                    return False
                if error.errno != errno.ENOENT:  # covered by something above it: out of reach
                    raise
        return True

    def _cover_mount(self, mount: Mount) -> None:
        if not os.path.isdir(mount.point):
            self._cover_file(mount.point)
        elif (mount.kind in mounts.KERNEL_KINDS or not mount.writable) and mount.point != "/":
            self._show_readonly(mount.point)
        else:
            self._overlay_or_readonly(mount.point, required=mount.point == "/")

    def _overlay_or_readonly(self, folder: str, *, required: bool = False) -> None:
        try:
            self._overlay(folder)
        except OSError as error:
            if required or error.errno == errno.ENOENT:
                raise
            self._show_readonly(folder)

    def _show_readonly(self, folder: str, *, recursive: bool = False) -> None:
        kernel.bind(folder, self._inside(folder), recursive=recursive)
        kernel.make_readonly(self._inside(folder), recursive=recursive)

    def _overlay(self, folder: str) -> None:
        """Lays a fresh upper layer over ``folder``."""
        self._count += 1
        upper = os.path.join(self._layers, str(self._count), "u")
        work = os.path.join(self._layers, str(self._count), "w")
        os.makedirs(upper)
        os.makedirs(work)
        self._copy_owner_and_mode(folder, upper)
        mount_overlay(folder, upper, work, self._inside(folder), confined=self._confined)
        self._overlaid.add(folder)

    def _copy_owner_and_mode(self, folder: str, upper: str) -> None:
        found = os.stat(folder)
        if not self._confined:
            os.chown(upper, found.st_uid, found.st_gid)
        # Owned by us where it belongs to somebody else, so it is checked as the owner's folder;
        # what others own and we may not write must stay unwritable.
        mode = stat.S_IMODE(found.st_mode)
        if self._confined and found.st_uid != os.geteuid():
            mode = mode & ~0o200 if not os.access(folder, os.W_OK) else mode | 0o700
        os.chmod(upper, mode)

    # -- in a user namespace: folders with mounts below them are put together ---------------------

    def _compose_root(self) -> None:
        copy = os.path.join(self._layers, "composed")
        os.makedirs(copy)
        kernel.bind(copy, self.root)
        self._compose("/")

    def _compose(self, folder: str) -> None:
        try:
            entries = list(os.scandir(folder))
        except OSError:  # may not be listed: then it looks empty
            return
        for entry in entries:
            path = os.path.join(folder, entry.name)
            if entry.is_symlink():
                os.symlink(os.readlink(path), self._inside(path))
            elif entry.is_dir():
                os.mkdir(self._inside(path))
                self._cover_folder(path)
            else:
                self._cover_file(path)
        os.chmod(self._inside(folder), stat.S_IMODE(os.stat(folder).st_mode) | 0o700)

    def _cover_folder(self, folder: str) -> None:
        if self._is_kernel_folder(folder):
            return
        here = [m for m in self._mounts if m.point == folder]
        if here and here[-1].kind in mounts.KERNEL_KINDS:
            self._show_readonly(folder, recursive=True)
        elif any(is_below(m.point, folder) for m in self._mounts):
            self._compose(folder)
        elif os.access(folder, os.R_OK | os.X_OK):
            self._overlay_or_readonly(folder)
        else:  # closed to us, in the view as outside
            os.chmod(self._inside(folder), 0)

    def _cover_file(self, path: str) -> None:
        """Copies a small file; a large one, a socket or a device is shown, unwritable."""
        target = self._inside(path)
        try:
            found = os.stat(path)
            small = stat.S_ISREG(found.st_mode) and found.st_size <= _LARGEST_COPY
            if small and not os.path.lexists(target):
                _copy(path, target)
                return
            if small:
                self._count += 1
                source = os.path.join(self._layers, f"file{self._count}")
                _copy(path, source)
                kernel.bind(source, target)
                return
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600))
            self._show_readonly(path)
        except PermissionError:  # unreadable for us, so for the script: absence says the same
            return

    def _cover_foreign(self, folder: str) -> None:
        """Covers a folder that we may write though somebody else owns it.

        An overlay in a user namespace cannot copy up what belongs to another user, except for its
        own topmost folder; so such a folder becomes the topmost one.
        """
        if folder in self._overlaid or not os.path.isdir(folder):
            return
        holds_mounts = any(is_below(m.point, folder) for m in self._mounts)
        if os.access(folder, os.W_OK) and not holds_mounts and folder != "/":
            self._overlay_or_readonly(folder)

    # -- both -------------------------------------------------------------------------------------

    def _is_kernel_folder(self, path: str) -> bool:
        return any(path == top or is_below(path, top) for top in ("/proc", "/sys", "/dev"))

    def _cover_kernel_folders(self) -> None:
        # Devices stay usable on a read-only mount, new files are refused.
        for folder in ("/dev", "/sys"):
            if os.path.isdir(folder):
                self._show_readonly(folder, recursive=True)
        if os.path.isdir("/dev/shm"):
            found = os.statvfs("/dev/shm")
            size = found.f_blocks * found.f_frsize
            kernel.mount("tmpfs", self._inside("/dev/shm"), "tmpfs", 0, f"mode=1777,size={size}")
        # Of the new process namespace; refused where a container masks parts of /proc.
        kernel.mount("proc", self._inside("/proc"), "proc")

    def _show_sockets(self) -> None:
        """Shows the sockets of running services, since one seen through an overlay is deaf.

        Without it name services (nscd, sssd), for example, would know no user.
        """
        for path in mounts.listening_sockets()[:_MOST_SOCKETS]:
            if not self._is_kernel_folder(path) and os.access(path, os.W_OK):
                try:
                    self._show_readonly(path)
                except OSError:  # gone by now, or out of reach in the view: it stays deaf
                    continue

    def _keep(self, folder: str) -> None:
        target = self._inside(os.path.realpath(folder))
        os.makedirs(target, exist_ok=True)
        kernel.bind(folder, target)


def _is_own(folder: str) -> bool:
    found = os.stat(folder)
    return (found.st_uid, found.st_gid) == (os.geteuid(), os.getegid())


def _copy(source: str, target: str) -> None:
    # Not shutil: importing it takes longer than all the rest of this.
    with open(source, "rb") as old, open(target, "xb") as new:
        found = os.fstat(old.fileno())
        new.write(old.read())
    os.chmod(target, stat.S_IMODE(found.st_mode))
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def mount_overlay(lower: str, upper: str, work: str, target: str, *, confined: bool) -> None:
    """Mounts one overlay; ``volatile`` saves a flush of the whole disk when it goes away."""
    handles = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in (lower, upper, work)]
    try:
        # Through descriptors, since commas, colons and length are trouble in mount options.
        low, up, aside = (f"/proc/self/fd/{handle}" for handle in handles)
        layers = f"lowerdir={low},upperdir={up},workdir={aside}"
        extras = (
            ("userxattr,volatile", "userxattr") if confined else ("redirect_dir=on,volatile", "")
        )
        for extra in extras:
            try:
                kernel.mount("overlay", target, "overlay", 0, f"{layers},{extra}".rstrip(","))
                return
            except OSError as error:
                if error.errno != errno.EINVAL or extra == extras[-1]:
                    raise
    finally:
        for handle in handles:
            os.close(handle)
