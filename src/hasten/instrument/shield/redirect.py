"""Redirect mode inside the script: Python's file functions look at and change the merged view.

`install` replaces the functions of ``os``, ``open`` and ``io.open``, and those that start commands
(`commands`). Libraries that open files in C or C++ by themselves are met after their import
(`patches_for`); a write that none of this sees is refused by the kernel (`landlock`).

Processes forked from the script inherit all of it; workers that multiprocessing spawns install it
again. A Python program that the script starts is a command like any other: it runs in the mirror
of its folder, with the kernel's protection but without these functions.
"""

import builtins
import io
import json
import os
import posix
import types
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from hasten.instrument import patching
from hasten.instrument.shield import renames
from hasten.instrument.shield.commands import Commands
from hasten.instrument.shield.entries import Entries
from hasten.instrument.shield.libraries import PATHS, Access
from hasten.instrument.shield.mirror import Mirror
from hasten.instrument.shield.old_pathlib import replace_in_old_pathlib

VARIABLE = "HASTEN_SHIELD"

_LOOKING = "stat access listdir statvfs pathconf getxattr listxattr chdir"
_LOOKING_AT_LINK = "lstat readlink"
_MAKING = "mkdir mkfifo mknod remove unlink rmdir"
_IN_PLACE = "chmod chown utime truncate setxattr removexattr"
_LINKS_IN_PLACE = "lchown"
_CAPABILITIES = ("supports_dir_fd", "supports_fd", "supports_follow_symlinks")

_mirrors: list[Mirror] = []  # at most the one of this process


def install_from(environment: MutableMapping[str, str]) -> bool:
    """Installs what the keeper asks for, and removes its variable so that workers stay clean.

    Returns:
        Whether anything was asked for: the whole redirection in redirect mode, the renaming of
        folders in overlay mode as an ordinary user.
    """
    text = environment.pop(VARIABLE, None)
    if text is None:
        return False
    shield = json.loads(text)
    if "scratch" in shield:
        install(shield["scratch"], keep=shield["keep"])
    else:
        renames.install()
    return True


def install(scratch: str, keep: list[str] | None = None) -> None:
    """Redirects this process's file functions; once a process, before the script and torch.

    Args:
        scratch: the trial's folder.
        keep: folders that the trial may write for real.
    """
    if _mirrors:
        return
    mirror = Mirror(scratch, keep or [])
    _mirrors.append(mirror)
    _Redirection(mirror).replace_file_functions()
    commands = Commands(mirror)
    commands.replace_functions()
    commands.follow_spawned_workers(scratch, keep or [])
    mirror.settle()


def patches_for(module_name: str) -> Callable[[Any], None] | None:
    """What to call with a module after its import, for those that open files outside Python."""
    paths = PATHS.get(module_name)
    if paths is None or not _mirrors:
        return None
    return lambda module: _replace_library_functions(_mirrors[0], module, paths)


def _replace_library_functions(mirror: Mirror, module: Any, paths: Mapping[str, Access]) -> None:
    for dotted, access in paths.items():
        owner_name, _, name = dotted.rpartition(".")
        owner = getattr(module, owner_name, None) if owner_name else module
        function = getattr(owner, name, None)
        if function is not None:
            patching.replace(owner, name, access.wrap(mirror, function))


class _Redirection:
    """Builds the replacements; each keeps the signature of what it replaces."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._replaced: dict[Any, Any] = {}

    def replace_file_functions(self) -> None:
        mirror = self._mirror
        for name in _LOOKING.split():
            self._replace(name, mirror.reading, follows=True)
        for name in _LOOKING_AT_LINK.split():
            self._replace(name, lambda path: mirror.reading(path, follow=False))
        for name in _MAKING.split():
            self._replace(name, mirror.entry, moves=name == "rmdir")
        for name in _IN_PLACE.split():
            self._replace(name, mirror.contents, follows=True)
        for name in _LINKS_IN_PLACE.split():
            self._replace(name, lambda path: mirror.contents(path, follow=False))
        self._replace_special()
        self._replace_open()
        for name in _CAPABILITIES:
            known = getattr(os, name)
            new = {self._replaced[old] for old in known if old in self._replaced}
            patching.replace(os, name, known | new)

    def _replace_special(self) -> None:
        unmapped = self._mirror.unmapped
        looked_at = os.readlink
        for name, new in {
            "getcwd": lambda: unmapped(posix.getcwd()),
            "getcwdb": lambda: os.fsencode(unmapped(posix.getcwd())),
            "readlink": _unmapping(looked_at, unmapped),
            "scandir": Entries(self._mirror).scandir,
            "rename": self._two_paths(posix.rename),
            "replace": self._two_paths(posix.replace),
            "link": self._link,
            "symlink": self._symlink,
            "open": self._open,
        }.items():
            self._put(name, new)

    def _replace(
        self, name: str, where: Callable[..., str], *, follows: bool = False, moves: bool = False
    ) -> None:
        native = getattr(posix, name, None)
        if native is None:
            return
        mirror = self._mirror
        default = "." if name == "listdir" else None

        def redirected(path: Any = default, *args: Any, **kwargs: Any) -> Any:
            if not is_path(path):
                return native(path, *args, **kwargs)
            options = {"follow": kwargs.get("follow_symlinks", True)} if follows else {}
            target = where(self._whole(path, kwargs, "dir_fd"), **options)
            try:
                result = native(as_given(target, path), *args, **kwargs)
            except OSError as error:
                raise _named(error, path) from None
            if moves:
                mirror.changed_links()
            return result

        self._put(name, redirected)

    def _put(self, name: str, new: Any) -> None:
        native = getattr(posix, name)
        if isinstance(new, types.FunctionType):  # a bound method keeps its name
            new.__name__ = new.__qualname__ = name
        self._replaced[native] = new
        patching.replace(os, name, new)
        replace_in_old_pathlib(name, native, new)

    def _whole(self, path: Any, kwargs: dict[str, Any], key: str) -> str:
        """The path as text, made independent of the folder descriptor that it refers to."""
        text = os.fsdecode(path)
        descriptor = kwargs.get(key)
        if descriptor is None:
            return text
        kwargs[key] = None
        if text.startswith("/"):
            return text
        folder = self._mirror.unmapped(posix.readlink(f"/proc/self/fd/{descriptor}"))
        return os.path.join(folder, text)

    def _two_paths(self, native: Callable[..., None]) -> Callable[..., None]:
        def redirected(src: Any, dst: Any, **kwargs: Any) -> None:
            source = self._mirror.entry(self._whole(src, kwargs, "src_dir_fd"))
            target = self._mirror.entry(self._whole(dst, kwargs, "dst_dir_fd"))
            try:
                native(source, target)
            except OSError as error:
                raise _named(error, src, dst) from None
            self._mirror.changed_links()

        return redirected

    def _link(self, src: Any, dst: Any, **kwargs: Any) -> None:
        source = self._whole(src, kwargs, "src_dir_fd")
        target = self._mirror.entry(self._whole(dst, kwargs, "dst_dir_fd"))
        follow = kwargs.get("follow_symlinks", True)
        # Linking leaves the file as it is, but one link could later be written through the other.
        try:
            posix.link(self._mirror.contents(source, follow=follow), target)
        except OSError as error:
            raise _named(error, src, dst) from None

    def _symlink(self, src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
        place = self._mirror.entry(self._whole(dst, kwargs, "dir_fd"))
        try:
            posix.symlink(self._mirror.link_target(os.fsdecode(src)), place, *args)
        except OSError as error:
            raise _named(error, src, dst) from None
        self._mirror.changed_links()

    def _open(self, path: Any, flags: int, mode: int = 0o777, **kwargs: Any) -> int:
        target = self._mirror.opening(self._whole(path, kwargs, "dir_fd"), flags)
        try:
            return posix.open(as_given(target, path), flags, mode)
        except OSError as error:
            raise _named(error, path) from None

    def _replace_open(self) -> None:
        native = io.open
        opening = self._opener

        def redirected(file: Any, *args: Any, **kwargs: Any) -> Any:
            # The seventh positional argument after the file is the opener.
            if is_path(file) and len(args) < 7 and kwargs.get("opener") is None:
                kwargs["opener"] = opening
            return native(file, *args, **kwargs)

        redirected.__name__ = redirected.__qualname__ = "open"
        for owner in (builtins, io):
            patching.replace(owner, "open", redirected)
        replace_in_old_pathlib("open", native, redirected)

    def _opener(self, path: Any, flags: int) -> int:
        # What open() does without an opener; it then makes the descriptor non-inheritable.
        return self._open(path, flags, 0o666)


def is_path(value: Any) -> bool:
    """Whether it names a file, rather than being a descriptor or a mistake."""
    return isinstance(value, (str, bytes, os.PathLike))


def as_given(target: str, path: Any) -> str | bytes:
    """Answers bytes with bytes, so that listdir and the like return what they should."""
    given = os.fspath(path)
    return os.fsencode(target) if isinstance(given, bytes) else target


def _named(error: OSError, path: Any, path2: Any = None) -> OSError:
    """The error with the names that the script gave, not those of the mirror."""
    error.filename = path
    if path2 is not None:
        error.filename2 = path2
    return error


def _unmapping(function: Any, unmapped: Callable[[str], str]) -> Callable[..., Any]:
    def readlink(path: Any, **kwargs: Any) -> Any:
        result = function(path, **kwargs)
        if isinstance(result, bytes):
            return os.fsencode(unmapped(os.fsdecode(result)))
        return unmapped(result)

    return readlink
