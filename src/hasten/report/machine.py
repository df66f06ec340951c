"""The machine in words: a line for reports, a table for `hasten env`."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Mapping
from typing import IO, Any

from rich.console import Console
from rich.text import Text

from hasten.environment import Environment
from hasten.report.phrases import GIB, safe, width


def text(parts: list[Text], stream: IO[str]) -> str:
    """Lines as they should be written to `stream`: styled on a terminal, plain elsewhere."""
    buffer = io.StringIO()
    terminal = stream.isatty()
    console = Console(
        file=buffer,
        force_terminal=terminal,
        no_color="NO_COLOR" in os.environ or None,
        color_system="auto" if terminal else None,
        width=width(stream),
        highlight=False,
        soft_wrap=True,
    )
    for part in parts:
        console.print(part)
    return safe(buffer.getvalue(), stream)


def line(facts: Mapping[str, Any]) -> str:
    """The machine on one line, from `Environment.describe()`."""
    cores = facts.get("cores", 1)
    parts = [
        f"{facts.get('cpu') or 'unknown processor'}, {cores} core{'s' if cores > 1 else ''}",
        *(gpu["name"] for gpu in facts.get("gpus", ())),
        f"{facts.get('usable_memory', 0) / GIB:.0f} GiB",
        f"torch {facts.get('torch') or 'not installed'}",
        f"Python {facts.get('python')}",
    ]
    return ", ".join(parts)


def render(environment: Environment, stream: IO[str] | None = None) -> str:
    """What `hasten env` prints."""
    stream = stream or sys.stdout
    lines = [Text.assemble((f"{name:<12}", "bold"), fact) for name, fact in _facts(environment)]
    lines.append(Text())
    if environment.limits:
        lines.append(Text("what limits training here", style="bold"))
        lines += [Text(f"  {limit}", style="yellow") for limit in environment.limits]
    else:
        lines.append(Text("nothing was found that limits training here"))
    return text(lines, stream)


def _facts(machine: Environment) -> Iterator[tuple[str, str]]:
    yield "system", machine.system + (f", in {machine.container}" if machine.container else "")
    yield "python", machine.python
    yield "torch", machine.torch or "not installed"
    yield "processor", machine.cpu
    cores = f"{machine.physical_cores} physical, {machine.logical_cores} logical"
    yield "cores", f"{machine.usable_cores:g} usable ({cores})"
    yield "features", ", ".join(machine.cpu_flags) or "none that matter"
    yield "bfloat16", "in hardware" if machine.cpu_bf16 else "not in the processor's hardware"
    sizes = f"{machine.usable_memory / GIB:.1f} GiB usable of {machine.memory / GIB:.1f} GiB"
    yield "memory", sizes
    if machine.shm is not None and machine.shm_free is not None:
        free = f"{machine.shm_free / GIB:.1f} GiB free of {machine.shm / GIB:.1f} GiB"
        yield "/dev/shm", free
    for gpu in machine.gpus:
        yield "GPU", gpu.name + (f", {gpu.memory / GIB:.1f} GiB" if gpu.memory else "")
    if not machine.gpus:
        yield "GPU", "none found"
    yield "compiler", machine.compiler or "none for torch.compile on the CPU"
    if machine.load is not None:
        yield "load", f"{machine.load:.2f} (average of the last minute)"
