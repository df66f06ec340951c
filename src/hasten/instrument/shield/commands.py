"""Commands that the script starts run in the mirror of their folder, on copies of its files.

A command's own file calls are not seen, so what it may write is prepared: its folder is mirrored
down to a bound, small files are copied, and so is every file that it names. What it changes
beyond that is refused by the kernel, and the command fails.
"""

import os
import posix
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from hasten.instrument import patching
from hasten.instrument.shield.mirror import Mirror

# Commands that look round their folder and write nothing: git, for one, would take a mirror for
# a folder outside of any repository.
_ONLY_LOOKING = frozenset(
    ["git", "hg", "svn", "nvidia-smi", "rocm-smi", "lscpu", "uname", "hostname", "which"]
)
_WORDS = re.compile(r"""[^\s'"<>|;&()$`]+""")
_PACKAGES = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
_MOST_FOLDERS = 200
_MOST_FILES = 2000
_LARGEST_UNASKED_COPY = 1 << 20


class Commands:
    """Makes the replacements of the functions that start a command."""

    def __init__(self, mirror: Mirror) -> None:
        """Takes the merged view that the commands work in."""
        self._mirror = mirror

    def replace_functions(self) -> None:
        """Replaces them in ``subprocess`` and ``os``."""
        self._replace_popen()
        patching.replace(os, "system", self._system)
        for name in ("execv", "execve"):
            patching.replace(os, name, self._exec(getattr(posix, name)))
        for name in ("posix_spawn", "posix_spawnp"):
            patching.replace(os, name, self._spawn(getattr(posix, name)))

    def follow_spawned_workers(self, scratch: str, keep: Sequence[str]) -> None:
        """Lets processes that multiprocessing starts anew install the redirection first of all."""
        import multiprocessing.util as util

        native = util.spawnv_passfds
        text = (
            f"import sys; sys.path.append({_PACKAGES!r}); "
            "from hasten.instrument.shield.redirect import install; sys.path.pop(); "
            f"install({scratch!r}, {list(keep)!r}); "
        )

        def spawnv_passfds(path: Any, args: Any, passfds: Any) -> int:
            starts = tuple(f"from multiprocessing.{name} " for name in ("spawn", "forkserver"))
            args = [text + a if isinstance(a, str) and a.startswith(starts) else a for a in args]
            return native(path, args, passfds)

        patching.replace(util, "spawnv_passfds", spawnv_passfds)

    def _replace_popen(self) -> None:
        native = subprocess.Popen._execute_child  # type: ignore[attr-defined]  # private

        def _execute_child(self_: Any, args: Any, *rest: Any) -> Any:
            # executable, preexec_fn, close_fds, pass_fds, cwd, env, ... in all of 3.10 to 3.14
            cwd = rest[4]
            args, folder = self._prepared(args, cwd)
            return native(self_, args, *rest[:4], folder if folder else cwd, *rest[5:])

        patching.replace(subprocess.Popen, "_execute_child", _execute_child)

    def _system(self, command: Any) -> int:
        status = subprocess.call(command, shell=True)
        return -status if status < 0 else status << 8

    def _exec(self, native: Callable[..., Any]) -> Callable[..., Any]:
        def execute(path: Any, argv: Sequence[Any], *rest: Any) -> Any:
            argv, folder = self._prepared(list(argv), None)
            before = posix.getcwd()
            if folder is not None:
                posix.chdir(folder)
            try:
                return native(path, argv, *rest)
            finally:
                posix.chdir(before)

        return execute

    def _spawn(self, native: Callable[..., int]) -> Callable[..., int]:
        def spawn(path: Any, argv: Sequence[Any], env: Any, /, **kwargs: Any) -> int:
            prepared, folder = self._prepared(list(argv), None)
            if folder is None:
                return native(path, prepared, env, **kwargs)
            # It has no argument for the folder, and a thread of ours may depend on the present one.
            shell = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', folder, os.fsdecode(path)]
            return native("/bin/sh", [*shell, *prepared[1:]], env, **kwargs)

        return spawn

    # -- preparing --------------------------------------------------------------------------------

    def _prepared(self, args: Any, cwd: Any) -> tuple[Any, str | None]:
        """The arguments led into the mirror, and the folder to run in (None: as it is)."""
        words = [args] if isinstance(args, (str, bytes, os.PathLike)) else list(args)
        texts = [os.fsdecode(word) for word in words]
        folder = os.path.join(os.getcwd(), os.fsdecode(cwd or ""))
        if not texts or _is_harmless(texts):
            # The process itself may be in a mirror; a folder made in the trial is only there.
            return args, folder if _is_real(folder) else self._mirror.reading(folder)
        for word in _named(texts):
            self._prepare_file(os.path.join(folder, word))
        native = self._mirror_folder(folder)
        mapped = [texts[0], *(self._mapped(text) for text in texts[1:])]
        if len(texts) == 1:
            mapped = [self._mapped(texts[0])]
        return (mapped[0] if isinstance(args, (str, bytes)) else mapped), native

    def _prepare_file(self, path: str) -> None:
        """Mirrors the folder of a path that a command names; copies the file if there is one."""
        if not os.path.isdir(os.path.dirname(path)) or _is_system(path):
            return
        try:
            if os.path.isfile(path):
                self._mirror.contents(path)
            elif os.path.isdir(path):
                self._mirror_folder(path)
            else:
                self._mirror.entry(path)
        except OSError as error:  # too large to copy: the command may only want to read it
            print(f"hasten: {path}: {error.strerror}", file=sys.stderr)

    def _mirror_folder(self, folder: str) -> str | None:
        """Mirrors a folder and, down to a bound, all below it; None when it is not writable."""
        top = os.path.realpath(folder)
        if _is_system(top + "/") or not os.access(top, os.W_OK | os.X_OK):
            return None
        waiting, folders, files = [top], 0, 0
        while waiting and folders < _MOST_FOLDERS and files < _MOST_FILES:
            here = waiting.pop(0)
            native = self._mirror.promote(here)
            folders += 1
            for name in sorted(posix.listdir(native)):
                path = os.path.join(here, name)
                if os.path.islink(path):
                    continue
                if os.path.isdir(path) and name not in (".git", "__pycache__"):
                    waiting.append(path)
                elif _is_small(path) and files < _MOST_FILES:
                    files += 1
                    self._mirror.contents(path)
        return self._mirror.reading(top)

    def _mapped(self, text: str) -> str:
        """Leads each absolute path in an argument into the mirror, where there is one."""

        def lead(match: "re.Match[str]") -> str:
            before, slash, after = match.group().partition("/")
            if before and not before.endswith(("=", ":")):
                return match.group()
            path = slash + after
            return before + (self._mirror.reading(path) if slash else after)

        return _WORDS.sub(lead, text)


def _is_harmless(texts: Sequence[str]) -> bool:
    first = texts[0].split()[0] if texts[0].split() else ""
    if os.path.basename(first) in ("sh", "bash") and len(texts) > 2 and texts[1] == "-c":
        first = texts[2].split()[0] if texts[2].split() else ""
        if set(texts[2]) & set("><|;&"):
            return False
    return os.path.basename(first) in _ONLY_LOOKING


def _named(texts: Sequence[str]) -> list[str]:
    """The words of a command that may be paths it works on."""
    words = [word for text in texts for word in _WORDS.findall(text)]
    return [
        word.rpartition("=")[2] for word in words[1:] if not word.startswith("-") or "=" in word
    ]


def _is_system(path: str) -> bool:
    tops = ("/usr/", "/bin/", "/sbin/", "/lib/", "/lib64/", "/etc/", "/opt/", "/proc/", "/sys/")
    return path in ("/", "//") or path.startswith((*tops, "/dev/"))


def _is_real(folder: str) -> bool:
    try:
        return bool(posix.stat(folder))
    except OSError:
        return False


def _is_small(path: str) -> bool:
    try:
        return os.path.isfile(path) and os.stat(path).st_size <= _LARGEST_UNASKED_COPY
    except OSError:  # removed since it was listed
        return False
