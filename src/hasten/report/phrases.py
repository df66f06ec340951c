"""How values, ratios and times are put into words, the same everywhere."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from hasten.records import Profile, Ratio, Tried, Value

GIB = 2**30
MIB = 2**20
NARROW, WIDE = 60, 120
#: What no plan may change, as it is compared.
COUNTED = "samples and updates, steps, learning rates, moved parameters, keys of checkpoints"


def width(stream: IO[str]) -> int:
    """Columns to fill: the terminal's within reason, and 80 where there is none."""
    if not stream.isatty():
        return 80
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        return 80
    return min(max(columns, NARROW), WIDE) if columns else 80


def encoding(stream: IO[str]) -> str:
    """The stream's encoding; UTF-8 where it has none."""
    return getattr(stream, "encoding", None) or "utf-8"


def has_bars(stream: IO[str]) -> bool:
    """Whether block characters can be shown: on a terminal that takes Unicode."""
    return stream.isatty() and "utf" in encoding(stream).lower()


def safe(text: str, stream: IO[str]) -> str:
    """`text` with what the stream can't encode replaced."""
    name = encoding(stream)
    return text.encode(name, errors="replace").decode(name)


def value(what: Value) -> str:
    """A setting's value in a few words; empty for a plain "on"."""
    if what is None or what is True:
        return ""
    if isinstance(what, Mapping):
        parts = (_entry(key, item) for key, item in what.items())
        return ", ".join(part for part in parts if part)
    return str(what)


def _entry(key: str, item: Any) -> str:
    if item is True:
        return key
    return "" if item is None or item is False else f"{key} {item}"


def label(tried: Tried) -> str:
    """The name of what was tried, with its value; for several at once each with its own."""
    names = tried.name.split(" + ")
    if len(names) > 1 and isinstance(tried.value, Mapping):
        return " + ".join(f"{n} {value(tried.value.get(n))}".strip() for n in names)
    return f"{tried.name} {value(tried.value)}".strip()


def candidate(tried: Tried) -> str:
    """What was tried: its name and value, and what it came on top of."""
    text = label(tried)
    return text if tried.against in ("", "baseline") else f"{text}, on top of {tried.against}"


def times(ratio: float | None) -> str:
    """A ratio, such as "1.53x"; "-" when it was not measured."""
    return "-" if ratio is None or not math.isfinite(ratio) else f"{ratio:.2f}x"


def interval(low: float | None, high: float | None) -> str:
    """An interval, such as "1.48 to 1.58"."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return "-"
    return f"{low:.2f} to {high:.2f}"


def with_interval(ratio: Ratio) -> str:
    """A ratio and its interval."""
    return f"{times(ratio.ratio)} ({interval(ratio.low, ratio.high)})"


def duration(seconds: float) -> str:
    """Seconds as a person would say them."""
    seconds = max(0, round(seconds))
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min {seconds % 60:02d} s"


def count(number: int, noun: str) -> str:
    """A number with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def loop(profile: Profile) -> list[str]:
    """What was recognised of the training loop, a line each."""
    lines = []
    for root in profile.roots:
        lines.append(f"model {root.name}, {count(root.parameters, 'parameter')}, {root.device}")
    lines += [f"optimizer {optimizer.name}" for optimizer in profile.optimizers]
    if (loader := profile.loader) is not None:
        size = "" if loader.batch_size is None else f", batch size {loader.batch_size}"
        workers = count(loader.workers, "worker") if loader.workers else "no workers"
        lines.append(f"loader of {loader.dataset}{size}, {workers}")
    else:
        lines.append("no DataLoader: an iteration is one optimizer step to the next")
    return lines


def run_command(script: tuple[str, ...], plan: Path | None) -> str:
    """The command that trains with the plan, quoted for a shell.

    Args:
        script: script and arguments as Python takes them.
        plan: the plan's path where it is not the place that `hasten run` looks at.
    """
    option = [] if plan is None else ["--plan", str(plan)]
    line = ["hasten", "run", *option, *script]
    if sys.platform == "win32":
        import subprocess

        return subprocess.list2cmdline(line)
    return shlex.join(line)
