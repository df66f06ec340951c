"""Functions of well-known libraries that open files outside Python, and where their path is."""

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from hasten.instrument.shield.mirror import Mirror


class Access(NamedTuple):
    """How one function uses its path."""

    position: int
    keyword: str
    writes: bool
    changes: bool = False
    """Whether it changes a file in place instead of writing it anew."""
    mode: tuple[int, str] | None = None
    """Where it says, as ``open`` does, whether it writes; None when it always does."""

    def wrap(self, mirror: Mirror, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function with its path led through the merged view."""

        @functools.wraps(function)
        def redirected(*args: Any, **kwargs: Any) -> Any:
            writes = self.writes and self._asks_to_write(args, kwargs)
            if self.keyword in kwargs:
                kwargs[self.keyword] = self._mapped(mirror, kwargs[self.keyword], writes)
            elif len(args) > self.position:
                mapped = self._mapped(mirror, args[self.position], writes)
                args = (*args[: self.position], mapped, *args[self.position + 1 :])
            return function(*args, **kwargs)

        return redirected

    def _asks_to_write(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if self.mode is None:
            return True
        position, keyword = self.mode
        asked = kwargs.get(keyword, args[position] if len(args) > position else "r")
        return isinstance(asked, str) and not set(asked).isdisjoint("wax+")

    def _mapped(self, mirror: Mirror, path: Any, writes: bool) -> Any:
        if not isinstance(path, (str, os.PathLike)):
            return path
        text = os.fsdecode(path)
        if not writes or text.startswith(("file:", ":")):
            return mirror.reading(text)
        emptied = 0 if self.changes else os.O_TRUNC
        return mirror.opening(text, os.O_RDWR | os.O_CREAT | emptied)


_READ, _WRITE = False, True

PATHS: dict[str, dict[str, Access]] = {
    "torch.serialization": {
        # Also reached as torch.save and torch.load, through `torch` below.
        "save": Access(1, "f", _WRITE),
        "load": Access(0, "f", _READ),
    },
    "torch": {
        "save": Access(1, "f", _WRITE),
        "load": Access(0, "f", _READ),
        "from_file": Access(0, "filename", _WRITE, changes=True),
        "jit.save": Access(1, "f", _WRITE),
        "jit.load": Access(0, "f", _READ),
    },
    "sqlite3": {"connect": Access(0, "database", _WRITE, changes=True)},
    "safetensors.torch": {
        "save_file": Access(1, "filename", _WRITE),
        "load_file": Access(0, "filename", _READ),
    },
    "cv2": {"imwrite": Access(0, "filename", _WRITE), "imread": Access(0, "filename", _READ)},
    "h5py": {"File.__init__": Access(1, "name", _WRITE, changes=True, mode=(2, "mode"))},
    "torchvision.io": {
        "write_png": Access(1, "filename", _WRITE),
        "write_jpeg": Access(1, "filename", _WRITE),
        "write_file": Access(0, "filename", _WRITE),
        "read_file": Access(0, "path", _READ),
        "read_image": Access(0, "path", _READ),
    },
}
