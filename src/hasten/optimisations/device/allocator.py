"""Use another memory allocator.

What it does
    On GPUs, lets torch's allocator grow its segments (`expandable_segments`); on the CPU, loads
    jemalloc or tcmalloc in place of the C library's allocator, where one is installed. The process
    has to be started with it.

Why it is faster
    Segments that grow don't leave gaps when sizes vary, so that memory isn't given back and asked
    for again. The CPU's allocators keep freed memory by thread, and hand it out again without
    locks or page faults.

When it helps
    Shapes that vary, memory that is nearly full; on the CPU, many large temporaries and threads.

Numerics
    Class `exact`: only addresses change.

Example
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py
    LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libjemalloc.so.2 python train.py

Source
    PyTorch, "CUDA semantics", on memory management; PyTorch performance tuning guide, "Switch
    memory allocator".
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hasten.optimisations.base import Applies, Numerics, Optimisation, Seams
from hasten.records import Profile, Value

if TYPE_CHECKING:
    from hasten.environment import Environment

_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
_EXPANDABLE = "expandable_segments"
_LIBRARIES = {
    "jemalloc": ("libjemalloc.so.2", "libjemalloc.so"),
    "tcmalloc": ("libtcmalloc.so.4", "libtcmalloc_minimal.so.4", "libtcmalloc.so"),
}


class Allocator(Optimisation):
    """torch's CUDA allocator, or the C library's."""

    name: ClassVar[str] = "allocator"
    numerics: ClassVar[Numerics] = Numerics.EXACT
    live: ClassVar[bool] = False
    order: ClassVar[int] = 60

    def applies(self, profile: Profile, environment: Environment) -> Applies:
        """What is installed and not in use yet."""
        if profile.device == "cuda":
            if _EXPANDABLE in os.environ.get(_VARIABLE, ""):
                return Applies(reason=f"{_VARIABLE} has set expandable_segments already")
            return Applies(values=(_EXPANDABLE,))
        if profile.device != "cpu":
            return Applies(reason=f"no other allocator is known for {profile.device}")
        if not sys.platform.startswith("linux"):
            return Applies(reason="another allocator can be loaded on Linux only")
        if any(name in os.environ.get("LD_PRELOAD", "") for name in _LIBRARIES):
            return Applies(reason="LD_PRELOAD loads another allocator already")
        found = tuple(name for name in _LIBRARIES if library(name))
        return Applies(values=found) if found else Applies(reason=_MISSING)

    def environment(self, value: Value) -> dict[str, str]:
        """What is set already is kept, ours is added."""
        if value == _EXPANDABLE:
            kept = os.environ.get(_VARIABLE, "")
            return {_VARIABLE: ",".join(filter(None, [kept, f"{_EXPANDABLE}:True"]))}
        path = library(value)
        kept = os.environ.get("LD_PRELOAD", "")
        return {"LD_PRELOAD": " ".join(filter(None, [path, kept]))} if path else {}

    def enable(self, seams: Seams, value: Value) -> None:
        """It is in force from the start of the process."""

    def disable(self, seams: Seams) -> None:
        """Only another process has another allocator."""

    def took_effect(self, seams: Seams, value: Value) -> str | None:
        """The process was started with it."""
        if value == _EXPANDABLE:
            there = _EXPANDABLE in os.environ.get(_VARIABLE, "")
            return None if there else f"the process was started without {_VARIABLE}"
        try:
            maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return "what the process has loaded can't be seen"
        return None if f"lib{value}" in maps else f"{value} isn't loaded"

    def check(self, value: Value) -> None:
        """One of the names."""
        if not isinstance(value, str) or value not in (_EXPANDABLE, *_LIBRARIES):
            raise ValueError('"expandable_segments", "jemalloc" or "tcmalloc"')


_MISSING = "neither jemalloc nor tcmalloc is installed (libjemalloc2 or libgoogle-perftools4)"


def library(name: str) -> str | None:
    """The path of an allocator's library: in this Python's environment, else the system's."""
    triplet = f"{os.uname().machine}-linux-gnu"
    folders = [Path(sys.prefix) / "lib", Path("/usr/local/lib"), Path("/usr/lib") / triplet]
    folders += [Path("/usr/lib64"), Path("/usr/lib")]
    for folder in folders:
        for file in _LIBRARIES[name]:
            if (folder / file).exists():
                return str(folder / file)
    return None
