"""The merged view of redirect mode: the user's folders plus what the trial changed in them.

At the first change inside a folder its *mirror* is made below ``<scratch>/mirror``, at the same
path, and filled with *placeholders*: symbolic links to the folder's entries, told from the
script's own links by the two slashes they begin with. From then on the mirror is what the folder
is: creating, renaming and removing act on it natively, so the kernel keeps its rules and its
errors. A placeholder that is opened for writing is replaced by a copy first.

Only ``posix`` functions are used here: those of ``os`` are the ones that lead back to this module.
"""

import errno
import os
import posix
import stat
from collections.abc import Sequence
from typing import NamedTuple

from hasten.instrument.shield.journal import Journal

_LARGEST_COPY = 2 << 30
_MOST_ENTRIES = 200_000
_MOST_LINKS = 40
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_TMPFILE = getattr(os, "O_TMPFILE", 0) & ~os.O_DIRECTORY


class Node(NamedTuple):
    """Where a path leads.

    Attributes:
        logical: the path without links, as the script knows it.
        native: the path for the kernel; in the mirror or the user's own.
        mirrored: whether ``native`` lies in the mirror.
    """

    logical: str
    native: str
    mirrored: bool


class Mirror:
    """Maps paths; one for each process, all sharing the state below the scratch folder."""

    def __init__(self, scratch: str, untouched: Sequence[str]) -> None:
        """Joins (or begins) the mirror of a trial.

        Args:
            scratch: the trial's folder.
            untouched: folders that the trial may write for real.
        """
        self.root = os.path.join(scratch, "mirror")
        self._copies = os.path.join(scratch, "copies")
        special = ("/dev/", "/proc/", "/sys/")
        self._untouched = (scratch + "/", *(folder + "/" for folder in untouched), *special)
        self._folders: dict[str, Node] = {}
        for folder in (self.root, self._copies):
            if not _exists(folder):
                posix.mkdir(folder, 0o700)
        self._journal = Journal(scratch, self._folders.clear)

    # -- for reading -----------------------------------------------------------------------------

    def reading(self, path: str, *, follow: bool = True) -> str:
        """The path to hand to the kernel for looking at ``path``."""
        self._journal.refresh()
        if not self._journal.roots or not path:
            return path
        node = self._walk(self._absolute(path), follow)
        if not node.mirrored and node.native == node.logical and path.startswith("/"):
            return path
        return node.native  # not the relative path: the process may be in a mirror

    def is_mirrored(self, path: str) -> bool:
        """Whether the folder ``path`` is shown from the mirror."""
        self._journal.refresh()
        return bool(self._journal.roots) and self._walk(self._absolute(path), True).mirrored

    def unmapped(self, native: str) -> str:
        """The script's name for a path of the mirror; any other path as it is."""
        if native == self.root:
            return "/"
        return native[len(self.root) :] if native.startswith(self.root + "/") else native

    # -- for changing ----------------------------------------------------------------------------

    def entry(self, path: str) -> str:
        """The path for making, renaming or removing ``path`` itself, its folder mirrored.

        Where the user could not write either, it is the real path, so that the error is real.
        """
        parent, name = self._parent(path)
        if not path or name in ("", ".", "..") or not self._may_change(parent):
            return self._absolute(path) if path else path
        native = self.promote(parent.logical) + "/" + name
        if self._original(native) is not None and self._is_folder_placeholder(native):
            return self.promote(os.path.join(parent.logical, name))
        return native

    def opening(self, path: str, flags: int) -> str:
        """The path to hand to open(2) with ``flags``."""
        if not flags & _WRITING and not flags & _TMPFILE:
            return self.reading(path, follow=not flags & os.O_NOFOLLOW)
        if flags & _TMPFILE and flags & os.O_DIRECTORY:
            return self.promote(self._final(path).logical)
        exclusive = flags & os.O_CREAT and flags & os.O_EXCL
        if exclusive or flags & os.O_NOFOLLOW:
            native = self.entry(path)
        else:
            node = self._final(path)
            if not self._may_write(node, creating=bool(flags & os.O_CREAT)):
                return self.reading(path)
            native = self.entry(node.logical)
        if not exclusive:
            self._take_over(native, empty=bool(flags & os.O_TRUNC))
        return native

    def contents(self, path: str, *, follow: bool = True) -> str:
        """The path for changing a file in place, or the properties of a file or folder."""
        node = self._final(path) if follow else self._walk(self._absolute(path), False)
        if not self._may_write(node, creating=False, owner_is_enough=True):
            return self.reading(path, follow=follow)
        native = self.entry(node.logical)
        if follow or not self._original_is_link(native):
            self._take_over(native, empty=False)
        return native

    def link_target(self, target: str) -> str:
        """What to store in a link to ``target``, so that the kernel finds it in the mirror."""
        if not target.startswith("/"):
            return target
        parent, name = self._parent(target)
        if not self._may_change(parent):
            return os.path.join("/", target.lstrip("/"))
        return self.promote(parent.logical) + "/" + name

    def promote(self, folder: str) -> str:
        """Makes the folder's mirror; returns where it is.

        Args:
            folder: a logical path without links.
        """
        node = self._walk(folder, True)
        if node.mirrored and node.logical == folder:
            return node.native
        with self._journal.changing() as change:
            if not self._promote_below_mirror(folder):
                native = self.root + folder.rstrip("/")
                self._fill(native, folder)
                change.add(folder)
        self._move_into_mirror()
        return self._walk(folder, True).native

    def settle(self) -> None:
        """Mirrors the folder that the process is in and moves there.

        So relative paths lead into the mirror also where a library opens a file by itself.
        """
        node = self._final(posix.getcwd())
        if not self._may_change(node):
            return
        try:
            self.promote(node.logical)
        except PermissionError:  # too many entries; then such a library meets the kernel's refusal
            return
        self._move_into_mirror()

    def _move_into_mirror(self) -> None:
        try:
            here = posix.getcwd()
        except FileNotFoundError:  # removed under the process
            return
        node = self._walk(here, True)
        if node.mirrored and not here.startswith(self.root):
            posix.chdir(node.native)

    def changed_links(self) -> None:
        """To be called after a folder or a link was renamed, made or removed."""
        with self._journal.changing():
            pass

    # -- the walk --------------------------------------------------------------------------------

    def _absolute(self, path: str) -> str:
        return path if path.startswith("/") else self.unmapped(posix.getcwd()) + "/" + path

    def _walk(self, path: str, follow: bool) -> Node:
        """Follows ``path`` (absolute) through the merged view, as realpath would."""
        folder, name = os.path.split(path.rstrip("/") or "/")
        parent = self._folders.get(folder)
        if parent is None:
            parent = self._follow(folder)
            if len(self._folders) > 10_000:
                self._folders.clear()
            self._folders[folder] = parent
        if name in ("", ".", ".."):
            return self._follow(path)
        return self._follow(name, parent, follow_last=follow or path.endswith("/"))

    def _follow(self, path: str, start: Node | None = None, *, follow_last: bool = True) -> Node:
        root = Node(
            "/", self.root if "/" in self._journal.roots else "/", "/" in self._journal.roots
        )
        node = start or root
        names = [name for name in reversed(path.split("/")) if name not in ("", ".")]
        links = 0
        while names:
            name = names.pop()
            if name == "..":
                node = self._follow(os.path.dirname(node.logical))
                continue
            child, target = self._step(node, name)
            if target is not None and (names or follow_last) and links < _MOST_LINKS:
                links += 1
                names += [part for part in reversed(target.split("/")) if part not in ("", ".")]
                node = root if target.startswith("/") else node
            else:
                node = child
        return node

    def _step(self, node: Node, name: str) -> tuple[Node, str | None]:
        """One component on; with the link's target when it is a link in the script's eyes."""
        logical = node.logical.rstrip("/") + "/" + name
        native = node.native.rstrip("/") + "/" + name
        if not node.mirrored:
            if logical in self._journal.roots and node.native == node.logical:
                return Node(logical, self.root + logical, True), None
            return Node(logical, native, False), _link(native)
        target = _link(native)
        if target is None:
            return Node(logical, native, True), None
        if target.startswith("//"):
            original = target[1:]
            return Node(logical, original, False), _link(original)
        return Node(logical, native, True), self.unmapped(target)

    def _parent(self, path: str) -> tuple[Node, str]:
        self._journal.refresh()
        folder, name = os.path.split(self._absolute(path).rstrip("/"))
        return self._walk(folder or "/", True), name

    def _final(self, path: str) -> Node:
        self._journal.refresh()
        return self._walk(self._absolute(path), True)

    # -- may the script do it, and may the shield redirect it? -----------------------------------

    def _is_untouched(self, logical: str) -> bool:
        if logical.startswith("/dev/shm"):
            return False
        return (logical + "/").startswith(self._untouched)

    def _may_change(self, folder: Node) -> bool:
        if self._is_untouched(folder.logical):
            return False
        writable = posix.access(folder.native, os.W_OK | os.X_OK)
        return writable and stat.S_ISDIR(posix.stat(folder.native).st_mode)

    def _may_write(self, node: Node, *, creating: bool, owner_is_enough: bool = False) -> bool:
        if self._is_untouched(node.logical):
            return False
        if not _exists(node.native):
            return creating
        found = posix.stat(node.native)
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            return False
        owned = owner_is_enough and found.st_uid in (posix.geteuid(), 0)
        return owned or posix.access(node.native, os.W_OK)

    # -- placeholders ----------------------------------------------------------------------------

    def _original(self, native: str) -> str | None:
        target = _link(native) if native.startswith(self.root) else None
        return target[1:] if target is not None and target.startswith("//") else None

    def _original_is_link(self, native: str) -> bool:
        original = self._original(native)
        return original is not None and _link(original) is not None

    def _is_folder_placeholder(self, native: str) -> bool:
        original = self._original(native)
        return original is not None and _is_folder(original)

    def _take_over(self, native: str, *, empty: bool) -> None:
        """Replaces a placeholder by a file of the trial's own."""
        original = self._original(native)
        if original is None or not stat.S_ISREG(posix.stat(original).st_mode):
            return
        found = posix.stat(original)
        if not empty and found.st_size > _LARGEST_COPY:
            text = "opened for writing in a trial, and too large to copy"
            raise PermissionError(errno.EACCES, text, original)
        copy = os.path.join(self._copies, posix.urandom(8).hex())
        _copy(original, copy, 0 if empty else found.st_size)
        posix.chmod(copy, stat.S_IMODE(found.st_mode))
        posix.utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns))
        posix.rename(copy, native)

    def _promote_below_mirror(self, folder: str) -> bool:
        """Turns the placeholders on the way to ``folder`` into mirrors; False if none is there."""
        node = Node("/", self.root, True) if "/" in self._journal.roots else Node("/", "/", False)
        for name in folder.split("/")[1:]:
            before, (node, _) = node, self._step(node, name)
            if before.mirrored and not node.mirrored:
                native = before.native + "/" + name
                self._replace_by_folder(native, node.native)
                node = Node(node.logical, native, True)
        return node.mirrored

    def _replace_by_folder(self, native: str, original: str) -> None:
        made = os.path.join(self._copies, posix.urandom(8).hex())
        self._fill(made, original)
        posix.unlink(native)
        posix.rename(made, native)

    def _fill(self, native: str, original: str) -> None:
        _make_folders(native)
        with posix.scandir(original) as entries:
            for count, entry in enumerate(entries):
                if count > _MOST_ENTRIES:
                    raise PermissionError(errno.EACCES, "too many entries to copy", original)
                self._place(native + "/" + entry.name, original.rstrip("/") + "/" + entry.name)
        posix.chmod(native, stat.S_IMODE(posix.stat(original).st_mode))

    def _place(self, native: str, original: str) -> None:
        if _exists(native):
            # The way to a mirror that was made earlier: so far it holds nothing else.
            if self.unmapped(native) not in self._journal.roots and _link(native) is None:
                self._fill(native, original)
            return
        target = _link(original)
        beside = target is not None and "/" not in target and target not in (".", "..")
        posix.symlink(target if target is not None and beside else "/" + original, native)


def _exists(path: str) -> bool:
    try:
        posix.lstat(path)
        return True
    except OSError:
        return False


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(posix.lstat(path).st_mode)
    except OSError:
        return False


def _link(path: str) -> str | None:
    try:
        return posix.readlink(path)
    except OSError:  # no link, or nothing there
        return None


def _make_folders(path: str) -> None:
    if _exists(path):
        return
    _make_folders(os.path.dirname(path))
    posix.mkdir(path, 0o700)


def _copy(source: str, target: str, size: int) -> None:
    old = posix.open(source, os.O_RDONLY | os.O_CLOEXEC)
    new = posix.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        while size > 0:
            sent = posix.sendfile(new, old, None, size)
            if sent == 0:
                break
            size -= sent
    finally:
        posix.close(old)
        posix.close(new)
