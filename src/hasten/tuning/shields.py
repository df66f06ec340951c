"""Which shield children run under."""

from __future__ import annotations

import os

from hasten.errors import HastenError
from hasten.instrument.shield.launch import ShieldMode, available_modes


def choose_shield(wanted: str) -> ShieldMode:
    """The shield to use.

    Raises:
        HastenError: the one that was asked for can't be had here.
    """
    modes = available_modes(os.getcwd())
    if wanted == "auto":
        return modes[0]
    mode = ShieldMode(wanted)
    if mode not in modes:
        have = ", ".join(m.value for m in modes)
        raise HastenError(f"the {wanted} shield can't be had on this machine; there is: {have}", 3)
    return mode
