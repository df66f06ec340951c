"""Times the calls of a piece of code by class and by the user's line, with `sys.setprofile`."""

from __future__ import annotations

import sys
import time
from types import FrameType
from typing import Any

from hasten.instrument.observe.places import is_users

#: Methods in which a transform does its work.
_WORK = ("__call__", "forward")
_Line = tuple[str, int, str]


class _Call:
    __slots__ = ("begun", "cls", "in_class", "in_line", "line")

    def __init__(self, cls: type | None, line: _Line | None) -> None:
        self.cls, self.line = cls, line
        self.in_class = self.in_line = 0
        self.begun = time.perf_counter_ns()


class CallTimes:
    """While entered, adds up where this thread's time goes.

    Attributes:
        classes: seconds in `__call__` or `forward` of each class, without such calls inside.
        lines: seconds of calls made by each of the user's lines, without the user's lines that
            are reached through them.
    """

    def __init__(self) -> None:
        self.classes: dict[type, float] = {}
        self.lines: dict[_Line, float] = {}
        self._stack: list[_Call] = []
        self._previous: Any = None

    def __enter__(self) -> CallTimes:
        self._previous = sys.getprofile()
        sys.setprofile(self._event)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(self._previous)
        while self._stack:
            self._pop()

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self._stack.append(_Call(_worker(frame), _line(frame.f_back)))
        elif event == "c_call":
            self._stack.append(_Call(None, _line(frame)))
        elif self._stack:
            self._pop()

    def _pop(self) -> None:
        call = self._stack.pop()
        spent = time.perf_counter_ns() - call.begun
        above = self._stack[-1] if self._stack else None
        in_class, in_line = call.in_class, call.in_line
        if call.cls is not None:
            own = 1e-9 * (spent - in_class)
            self.classes[call.cls] = self.classes.get(call.cls, 0.0) + own
            in_class = spent
        if call.line is not None:
            own = 1e-9 * (spent - in_line)
            self.lines[call.line] = self.lines.get(call.line, 0.0) + own
            in_line = spent
        if above is not None:
            above.in_class += in_class
            above.in_line += in_line


def _worker(frame: FrameType) -> type | None:
    """The class whose work begins in this frame."""
    code = frame.f_code
    if code.co_name not in _WORK or not code.co_argcount or code.co_varnames[0] != "self":
        return None
    return type(frame.f_locals["self"])


def _line(frame: FrameType | None) -> _Line | None:
    if frame is None or not is_users(frame.f_code.co_filename):
        return None
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
