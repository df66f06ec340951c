"""The trace in Chrome's format: what Perfetto needs, and nothing that it would refuse."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from hasten.diagnosis import Span, Timeline
from hasten.report.trace import chrome_trace

SPANS = (
    Span("main", "data", 0.0, 0.01),
    Span("main", "forward", 0.01, 0.1),
    Span("main", "data", 0.1, 0.2),
    Span("worker 0", "batch", 0.0, 0.05),
    Span("worker 11", "batch", 0.05, 0.15),
)


def events(*timelines: Timeline | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(chrome_trace(*timelines))["traceEvents"]
    return found


def test_lanes_are_named_threads_and_spans_complete_events() -> None:
    found = events(Timeline((0.0, 0.1, 0.2), SPANS))
    names = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
    assert set(names.values()) == {"iterations", "main", "worker 0", "worker 11"}
    order = sorted(names)
    assert [names[thread] for thread in order] == ["iterations", "main", "worker 0", "worker 11"]
    whole = [e for e in found if e["ph"] == "X"]
    assert len(whole) == len(SPANS) + 2
    for event in whole:
        assert event["dur"] >= 0 and event["ts"] >= 0 and event["tid"] in names
    forward = next(e for e in whole if e["name"] == "forward")
    assert forward["ts"] == pytest.approx(1e4) and forward["dur"] == pytest.approx(9e4)


def test_on_one_lane_nothing_overlaps() -> None:
    """Perfetto drops events of a thread that overlap without being nested."""
    found = [e for e in events(Timeline((0.0, 0.1, 0.2), SPANS)) if e["ph"] == "X"]
    for thread in {e["tid"] for e in found}:
        lane = sorted((e["ts"], e["ts"] + e["dur"]) for e in found if e["tid"] == thread)
        assert all(end <= begin + 1e-3 for (_, end), (begin, _) in pairwise(lane))


def test_a_profiled_iteration_is_a_process_of_its_own() -> None:
    device = Timeline((0.0, 0.1), (Span("device", "busy", 0.0, 0.02),))
    found = events(Timeline((0.0, 0.1), SPANS[:2]), device)
    assert {e["pid"] for e in found} == {1, 2}
    assert events(None) == [] and {e["pid"] for e in events(None, device)} == {2}
