"""``os.scandir`` for mirrored folders; a placeholder is seen as what it stands for."""

import os
import posix
import stat
from collections.abc import Iterator
from typing import Any

from hasten.instrument.shield.mirror import Mirror


class Entry:
    """What ``os.DirEntry`` offers, for one name in a mirrored folder."""

    def __init__(self, mirror: Mirror, name: Any, path: Any, where: str) -> None:
        """Takes the name, the path as the script sees it, and where that really is."""
        self._mirror = mirror
        self._where = where
        self.name = name
        self.path = path

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """The file's status; of the original where it was not changed."""
        native = self._mirror.reading(self._where, follow=follow_symlinks)
        return posix.stat(native) if follow_symlinks else posix.lstat(native)

    def inode(self) -> int:
        """The inode number of the entry itself."""
        return self.stat(follow_symlinks=False).st_ino

    def is_symlink(self) -> bool:
        """Whether it is a link in the script's eyes."""
        return stat.S_ISLNK(self._mode(follow=False))

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a folder."""
        return stat.S_ISDIR(self._mode(follow=follow_symlinks))

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is an ordinary file."""
        return stat.S_ISREG(self._mode(follow=follow_symlinks))

    def is_junction(self) -> bool:
        """Never, outside Windows."""
        return False

    def _mode(self, *, follow: bool) -> int:
        try:
            return self.stat(follow_symlinks=follow).st_mode
        except FileNotFoundError:  # a link to nothing, or removed since it was listed
            return 0


class Listing:
    """What ``os.scandir`` returns: an iterator that is a context manager, too."""

    def __init__(self, entries: list[Entry]) -> None:
        """Takes the entries, read beforehand."""
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Entry]:
        return self

    def __next__(self) -> Entry:
        return next(self._entries)

    def __enter__(self) -> "Listing":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the iteration."""
        self._entries = iter(())


class Entries:
    """Makes the replacement of ``os.scandir``."""

    def __init__(self, mirror: Mirror) -> None:
        """Takes the merged view to list from."""
        self._mirror = mirror

    def scandir(self, path: Any = None) -> Any:
        """``os.scandir``, listing the merged view."""
        folder = "." if path is None else path
        if isinstance(folder, int):
            logical = self._mirror.unmapped(posix.readlink(f"/proc/self/fd/{folder}"))
            if not self._mirror.is_mirrored(logical):
                return posix.scandir(folder)
            return self._listing(posix.listdir(folder), "", logical)
        text = os.fsdecode(folder)
        if not self._mirror.is_mirrored(text):
            return posix.scandir(folder)
        given = os.fspath(folder)
        native = self._mirror.reading(text)
        names = posix.listdir(os.fsencode(native) if isinstance(given, bytes) else native)
        return self._listing(names, given, text)

    def _listing(self, names: list[Any], shown: Any, folder: str) -> Listing:
        return Listing(
            [
                Entry(
                    self._mirror,
                    name,
                    os.path.join(shown, name) if shown else name,
                    os.path.join(folder, os.fsdecode(name)),
                )
                for name in names
            ]
        )
