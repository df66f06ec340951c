"""The user's own line on the stack, and whose file is the user's."""

from __future__ import annotations

import linecache
import os
import site
import sys
import sysconfig
from types import CodeType, FrameType
from typing import Any

from hasten.diagnosis import Place

_DEEPEST = 60  # frames that are looked at


def _foreign_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found |= {*site.getsitepackages(), site.getusersitepackages()}
    found.add(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    found |= {os.path.realpath(path) for path in found}
    return tuple(os.path.join(path, "") for path in found)


_FOREIGN = _foreign_roots()
_known: dict[str, bool] = {}


def is_users(filename: str) -> bool:
    """Whether a file of code is the user's: no library's, not hasten's, and a file at all."""
    known = _known.get(filename)
    if known is None:
        installed = filename.startswith(_FOREIGN) or os.path.join("", "site-packages", "") in (
            filename
        )
        known = not installed and not filename.startswith("<")
        _known[filename] = known
    return known


def users_frame(above: int = 1) -> tuple[str, int, str] | None:
    """File, line and function of the user's innermost frame.

    Args:
        above: frames of the caller's own to leave out.
    """
    frame: FrameType | None = sys._getframe(above + 1)
    for _ in range(_DEEPEST):
        if frame is None:
            return None
        code = frame.f_code
        if is_users(code.co_filename):
            return code.co_filename, frame.f_lineno, code.co_name
        frame = frame.f_back
    return None


def called_by_user(above: int = 1) -> bool:
    """Whether the frame that called is the user's itself, not a library's."""
    return is_users(sys._getframe(above + 1).f_code.co_filename)


def place(file: str, line: int, function: str = "") -> Place:
    """A place with the text of its line."""
    full = os.path.abspath(file)
    return Place(full, line, linecache.getline(full, line).strip(), function)


def place_of(function: Any) -> Place | None:
    """Where a function or class of the user's is written; None: it is a library's."""
    function = getattr(function, "__func__", function)
    function = getattr(function, "__wrapped__", function)
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType) and is_users(code.co_filename):
        return place(code.co_filename, code.co_firstlineno, code.co_name)
    return None
