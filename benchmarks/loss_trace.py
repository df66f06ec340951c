"""Runs a training command and keeps the exact bits of every loss; compares two such runs.

`benchmarks/hooks/sitecustomize.py` is put on the command's PYTHONPATH. It wraps
`torch.autograd.backward` (which `Tensor.backward` calls) once the script has
imported torch, and writes `float.hex()` of what is passed to it, so two traces
are equal only if every loss is equal to the bit. The command is ended after a
number of calls; whatever it left running is ended with it.

Whether two plain runs agree is up to the script: with `seed` the harness seeds
torch, numpy and random just after torch's import, for scripts that seed nothing.

    python benchmarks/loss_trace.py --calls 50 --cwd DIRECTORY \\
        --plain "python train.py" --other "hasten run --watch train.py"
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HOOKS = Path(__file__).resolve().parent / "hooks"


@dataclass(frozen=True)
class Trace:
    """The losses of one run.

    Attributes:
        losses: one text a backward call, the exact bits of what was passed.
        seconds: when each call came, on a monotonic clock.
        processor: the processor time that the process had used by then.
        status: the exit status, negative for a signal, None when it ran out of time.
        output: the end of what the command printed.
    """

    losses: tuple[str, ...]
    seconds: tuple[float, ...]
    processor: tuple[float, ...]
    status: int | None
    output: str

    def step_ms(self, calls: int = 1, skip: int = 2) -> tuple[float, float]:
        """Return the time of an iteration of `calls` backward calls, in ms.

        Args:
            calls: backward calls an iteration.
            skip: iterations at the start to leave out.

        Returns:
            The medians of wall time, and of processor time of the process itself
            (without its workers), which other load disturbs less.
        """
        counted = slice(skip * calls, None, calls)
        return _median_gap_ms(self.seconds[counted]), _median_gap_ms(self.processor[counted])


def _median_gap_ms(times: Sequence[float]) -> float:
    gaps = [1000 * (later - earlier) for earlier, later in itertools.pairwise(times)]
    return statistics.median(gaps) if gaps else float("nan")


@dataclass(frozen=True)
class Comparison:
    """Whether two runs had the same losses, and where they first did not.

    Attributes:
        equal: both ended as they should, with the same losses to the bit.
        calls: how many backward calls were compared.
        first_difference: the first call, from 0, that differs; None when none does.
        reason: what is wrong, empty when equal.
    """

    equal: bool
    calls: int
    first_difference: int | None
    reason: str
    plain: Trace
    other: Trace


def trace(
    command: Sequence[str],
    calls: int,
    *,
    cwd: Path | str = ".",
    environment: Mapping[str, str] | None = None,
    seed: int | None = None,
    timeout: float = 300.0,
) -> Trace:
    """Run a command and record its losses.

    Args:
        command: the program and its arguments.
        calls: end the run at this many backward calls; 0 lets it end by itself.
        cwd: the working directory.
        environment: variables on top of this process's own. PYTHONPATH is put
            behind the hooks, in front of this process's own.
        seed: what to seed the generators with after torch's import, if anything.
        timeout: seconds after which the run is ended and what there is returned.

    Returns:
        The trace, however the run ended.
    """
    with tempfile.TemporaryDirectory(prefix="loss-trace-") as folder:
        path = Path(folder) / "losses"
        variables = {**os.environ, **(environment or {})}
        inherited = variables.get("PYTHONPATH", "").split(os.pathsep)
        places = [str(HOOKS), *(place for place in inherited if place and place != str(HOOKS))]
        variables["PYTHONPATH"] = os.pathsep.join(places)
        variables["LOSS_TRACE_FILE"] = str(path)
        variables["LOSS_TRACE_STOP"] = str(calls)
        if seed is not None:
            variables["LOSS_TRACE_SEED"] = str(seed)
        status, output = _run(command, cwd, variables, timeout, Path(folder) / "output")
        lines = path.read_text().splitlines() if path.exists() else []
    rows = [line.split("\t") for line in lines if line.count("\t") == 2]
    return Trace(
        losses=tuple(row[0] for row in rows),
        seconds=tuple(float(row[1]) for row in rows),
        processor=tuple(float(row[2]) for row in rows),
        status=status,
        output=output,
    )


def _run(
    command: Sequence[str],
    cwd: Path | str,
    variables: Mapping[str, str],
    timeout: float,
    output: Path,
) -> tuple[int | None, str]:
    """Run in a session of its own, and end that session's processes afterwards."""
    with output.open("wb") as file:
        process = subprocess.Popen(
            list(command),
            cwd=cwd,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            # Workers notice the end of their parent only after seconds.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return status, output.read_bytes()[-4000:].decode(errors="replace")


def difference(plain: Trace, other: Trace, calls: int = 0) -> Comparison:
    """Compare two traces to the bit.

    Args:
        plain: the run to agree with.
        other: the run in question.
        calls: how many calls both had to make at least, unless the command ended
            by itself; 0 for any number above none.
    """
    common = min(len(plain.losses), len(other.losses))
    pairs = zip(plain.losses, other.losses, strict=False)
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    reason = ""
    if first is not None:
        reason = f"call {first}: {plain.losses[first]} against {other.losses[first]}"
    elif plain.status != 0 or other.status != 0:
        reason = f"ended with {plain.status} and {other.status}"
    elif len(plain.losses) != len(other.losses):
        reason = f"{len(plain.losses)} calls against {len(other.losses)}"
    elif common == 0:
        reason = "no backward call was seen"
    elif common < calls:
        reason = f"the command ended after {common} of {calls} calls"
    return Comparison(not reason, common, first, reason, plain, other)


def compare(
    plain_command: Sequence[str],
    other_command: Sequence[str],
    calls: int,
    *,
    cwd: Path | str = ".",
    environment: Mapping[str, str] | None = None,
    seed: int | None = None,
    timeout: float = 300.0,
    ends_early: bool = False,
) -> Comparison:
    """Run two commands one after the other and tell whether their losses are equal.

    Args:
        plain_command: the run to agree with, usually `[python, script, ...]`.
        other_command: the run in question, such as `[hasten, run, --watch, script, ...]`.
        calls: how many backward calls to compare.
        cwd: the working directory of both.
        environment: variables of both, on top of this process's own.
        seed: see `trace`.
        timeout: seconds for each.
        ends_early: the script may end before so many calls.
    """
    plain, other = (
        trace(c, calls, cwd=cwd, environment=environment, seed=seed, timeout=timeout)
        for c in (plain_command, other_command)
    )
    return difference(plain, other, 0 if ends_early else calls)


def main() -> int:
    """Compare two commands given as shell words."""
    parser = argparse.ArgumentParser(description="Compare the losses of two commands to the bit.")
    parser.add_argument("--plain", required=True, help="the command to agree with")
    parser.add_argument("--other", help="the command in question; the same one again if left out")
    parser.add_argument("--calls", type=int, default=50, help="backward calls to compare")
    parser.add_argument("--cwd", type=Path, default=Path())
    parser.add_argument("--seed", type=int, help="seed torch, numpy and random after the import")
    parser.add_argument("--timeout", type=float, default=300.0)
    options = parser.parse_args()
    plain = shlex.split(options.plain)
    other = shlex.split(options.other) if options.other else plain
    result = compare(
        plain,
        other,
        options.calls,
        cwd=options.cwd,
        seed=options.seed,
        timeout=options.timeout,
    )
    print("equal" if result.equal else f"DIFFERENT: {result.reason}", f"({result.calls} calls)")
    if not result.equal and not (result.plain.losses and result.other.losses):
        print(result.plain.output, result.other.output, sep="\n", file=sys.stderr)
    return 0 if result.equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
