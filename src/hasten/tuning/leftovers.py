"""What an earlier session has left that was killed with all of its keepers."""

from __future__ import annotations

from hasten.instrument.launch import compiled_code
from hasten.instrument.shield import scratch
from hasten.tuning import compile_cache


def sweep() -> None:
    """Remove it; once, before the first child of a session."""
    scratch.sweep()
    code = compiled_code()
    if code is not None:
        compile_cache.sweep(str(code))
