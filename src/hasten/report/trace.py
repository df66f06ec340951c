"""A timeline as a trace in Chrome's format, which ui.perfetto.dev and chrome://tracing open.

The format: "Trace Event Format" by the Chromium project; complete events ("X") in microseconds,
and metadata ("M") that names processes and threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from hasten.diagnosis import Timeline

#: The process, for Perfetto, of each kind of timeline: typical iterations, and a profiled one.
_OBSERVED, _PROFILED = 1, 2
_ITERATIONS, _MAIN, _WORKER = 0, 1, 10
_DEVICE = 1000


def chrome_trace(
    observed: Timeline | None, profiled: Timeline | None = None, script: str = ""
) -> str:
    """The trace as JSON.

    Args:
        observed: typical iterations; None: there are none, and the trace is empty.
        profiled: one iteration under a profiler, which has the lane of a device.
        script: whose they are.
    """
    events = [
        *_process(observed, _OBSERVED, "typical iterations"),
        *_process(profiled, _PROFILED, "one iteration under torch's profiler"),
    ]
    missing = {} if observed is None else observed.missing
    whole = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"made by": "hasten diagnose", "script": script, **missing},
    }
    return json.dumps(whole, allow_nan=False, separators=(",", ":"))


def _process(timeline: Timeline | None, process: int, name: str) -> Iterator[dict[str, Any]]:
    if timeline is None:
        return
    yield _metadata("process_name", process, 0, name=name)
    lanes = ["iterations", *dict.fromkeys(span.lane for span in timeline.spans)]
    for lane in lanes:
        yield _metadata("thread_name", process, _thread(lane), name=lane)
        yield _metadata("thread_sort_index", process, _thread(lane), sort_index=_thread(lane))
    for number, (begin, end) in enumerate(pairwise(timeline.borders)):
        thread = _thread("iterations")
        yield _complete("iteration", f"iteration {number + 1}", process, thread, begin, end)
    for span in timeline.spans:
        yield _complete("phase", span.what, process, _thread(span.lane), span.begin, span.end)


def _thread(lane: str) -> int:
    """Numbers in the order in which lanes are shown."""
    kind, _, number = lane.partition(" ")
    if kind == "worker":
        return _WORKER + int(number or 0)
    return {"iterations": _ITERATIONS, "main": _MAIN}.get(lane, _DEVICE)


def _metadata(what: str, process: int, thread: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}


def _complete(
    category: str, name: str, process: int, thread: int, begin: float, end: float
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": process,
        "tid": thread,
        "ts": round(1e6 * begin, 3),
        "dur": round(1e6 * (end - begin), 3),
    }
