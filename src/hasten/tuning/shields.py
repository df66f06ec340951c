"""Which shield children run under."""

from __future__ import annotations

import os
import tempfile

from hasten.errors import HastenError
from hasten.instrument.shield.launch import ShieldMode, available_modes


def choose_shield(wanted: str) -> ShieldMode:
    """The shield to use.

    Raises:
        HastenError: the one that was asked for can't be had here, or there is no place for
            temporary files, without which there is none at all.
    """
    try:
        tempfile.gettempdir()
    except OSError as error:
        problem = f"no temporary file can be written ({error.strerror})"
        raise HastenError(
            f"{problem}: make room, or set TMPDIR to a folder that has it", 3
        ) from None
    modes = available_modes(os.getcwd())
    if wanted == "auto":
        return modes[0]
    mode = ShieldMode(wanted)
    if mode not in modes:
        have = ", ".join(m.value for m in modes)
        raise HastenError(f"the {wanted} shield can't be had on this machine; there is: {have}", 3)
    return mode
