"""What a mistake really costs: the script as it is and put right, in turns of about a second.

Both run as plain Python, without hasten, each in a process of its own that stands still while the
other has its turn. A turn is over at an optimizer step; its time counts everything that the run
does, epoch borders too. What is returned is a share of the run: it bears a change of the machine's
speed between this and a diagnosis, where milliseconds don't.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hasten.statistics.bootstrap import change_of_mean

#: Runs a script and stops after each turn until it is told to go on. argv: script and arguments.
_HARNESS = """
import json, os, runpy, sys, time
commands, reports = os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w", buffering=1)
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
state = {"end": 0.0, "begun": 0.0, "steps": 0, "skip": 0.0}

def turn():
    line = commands.readline()
    if not line:
        os._exit(0)
    skip, seconds = json.loads(line)
    now = time.perf_counter()
    state.update(steps=0, begun=0.0, skip=now + skip, end=now + skip + seconds)

def stepped(*_):
    now = time.perf_counter()
    if not state["begun"]:
        if now >= state["skip"]:
            state.update(begun=now, end=max(state["end"], now))
        return
    state["steps"] += 1
    if now >= state["end"]:
        reports.write(json.dumps([state["steps"], now - state["begun"]]) + "\\n")
        turn()

register_optimizer_step_post_hook(stepped)
sys.argv = sys.argv[3:]
turn()
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Truth:
    """The share of the run that a mistake costs, with its 99 % interval."""

    share: float
    low: float
    high: float


class _Script:
    """One process that takes turns."""

    def __init__(self, argv: Sequence[str], cwd: Path) -> None:
        to_child, self._commands = os.pipe()
        self._reports, from_child = os.pipe()
        command = [sys.executable, "-c", _HARNESS, str(to_child), str(from_child), *argv]
        self._process = subprocess.Popen(
            command,
            cwd=cwd,
            pass_fds=(to_child, from_child),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_child)
        os.close(from_child)
        self._to: IO[str] = os.fdopen(self._commands, "w", buffering=1)
        self._from: IO[str] = os.fdopen(self._reports)

    def turn(self, skip: float, seconds: float) -> float | None:
        """Seconds a step in a turn of about `seconds`; None: the script has ended."""
        try:
            self._to.write(json.dumps([skip, seconds]) + "\n")
        except BrokenPipeError:
            return None
        line = self._from.readline()
        if not line:
            return None
        steps, spent = json.loads(line)
        return float(spent) / max(1, int(steps))

    def close(self) -> None:
        """End the process and its workers, which notice that it is gone."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._to, self._from):
            try:
                pipe.close()
            except BrokenPipeError:
                continue


def truth(
    script: str, right: str, cwd: Path, turns: int = 14, skip: float = 0.2, seconds: float = 0.8
) -> Truth | None:
    """What the mistake in a script costs; None: it ended too soon.

    Args:
        script: as a user would call it.
        right: the argument with which it has no mistake.
        cwd: working directory.
        turns: of each.
        skip: seconds at the beginning of a turn that don't count: batches were made meanwhile.
        seconds: of a turn.
    """
    scripts = [_Script((script, *more), cwd) for more in ((), (right,))]
    times: tuple[list[float], list[float]] = ([], [])
    try:
        for number in range(turns + 1):
            for which in (0, 1) if number % 2 else (1, 0):
                spent = scripts[which].turn(skip if number else 3 * skip, seconds)
                if spent is None:
                    return None
                if number:
                    times[which].append(spent)
    finally:
        for each in scripts:
            each.close()
    change = change_of_mean(times[0], times[1])
    if change is None or change.low is None or change.high is None:
        return None
    return Truth(-change.estimate, -change.high, -change.low)
