"""The script's end of `hasten run --tune`: started in its process once torch is there."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from typing import Any

from hasten.errors import HastenError
from hasten.plan import dump
from hasten.records import Outcome
from hasten.report.phrases import duration, times, value
from hasten.report.progress import Lines
from hasten.tuning.inside import Inside, InsideRequest
from hasten.tuning.plans import make_plan


def start(options: dict[str, Any]) -> None:
    """Tune while the script trains.

    Args:
        options: "request": the fields of an `InsideRequest`; "arguments": the script and its
            arguments; "output": where the plan goes.
    """
    arguments, output = tuple(options["arguments"]), Path(options["output"])
    listener = Lines(sys.stderr, prefix="hasten: ")
    request = InsideRequest(**{n: _hashable(v) for n, v in options["request"].items()})
    inside = Inside(
        request,
        listener,
        lambda outcome: _end(listener, arguments, output, outcome, request.item_seeds),
    )
    conductor = inside.conductor(inside.program)
    mine = os.getpid()

    def at_exit() -> None:
        """A training that ends before the search does still leaves what was found."""
        if os.getpid() == mine and not inside.ended:
            inside.iterations = conductor.iterations
            inside.end(interrupted=True)

    atexit.register(at_exit)
    conductor.install()


def _hashable(field: Any) -> Any:
    return tuple(field) if isinstance(field, list) else field


def _end(
    listener: Lines,
    arguments: tuple[str, ...],
    output: Path,
    outcome: Outcome | None,
    item_seeds: bool,
) -> None:
    """Say what was found and save it; the training goes on whatever comes of that."""
    if outcome is None:
        listener.say("nothing was tuned: no training loop was watched to the end of the watch")
        return
    took = f"tuned for {duration(outcome.seconds)} over {outcome.iterations} iterations"
    if outcome.interrupted:
        took += ", until the training ended"
    if not outcome.setting:
        measured = ", ".join(row.name for row in outcome.tried if row.pairs)
        listener.say(
            f"{took}: nothing that may be tried here is measurably faster"
            f" (measured: {measured or 'nothing'})"
        )
        return
    parts = "; ".join(f"{name} {value(what)}".strip() for name, what in outcome.setting.items())
    gain = f", {times(outcome.gain)} as fast by its turns" if outcome.gain else ""
    listener.say(f"{took}; training goes on with: {parts}{gain}")
    try:
        dump(make_plan(arguments, outcome, item_seeds), output)
    except (HastenError, OSError) as error:
        listener.say(f"the plan could not be saved: {error}")
        return
    listener.say(f"written to {output}; next time: hasten run")
