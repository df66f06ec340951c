"""The one error that commands turn into one line and an exit code."""

from __future__ import annotations

_LONGEST = 200  # characters of what others' errors are told in


def brief(line: str) -> str:
    """A line of somebody else's error, short enough to be shown in a table."""
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3].rstrip() + "..."


class HastenError(Exception):
    """What went wrong and what to do about it, in one line.

    Attributes:
        exit_code: what the process ends with (2: bad input or unusable script; 3: the trial
            could not be run on this machine; 130: interrupted).
        detail: what the script itself had to say (a traceback, a usage text), to be shown
            above the line as it is.
    """

    def __init__(self, message: str, exit_code: int = 2, detail: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.detail = detail
