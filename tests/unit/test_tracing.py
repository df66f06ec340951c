"""When phases began and ended, losses of blocks, and the lanes and curves of observers."""

from __future__ import annotations

import math
import mmap
import os
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from hasten.diagnosis import Course
from hasten.instrument import tracing
from hasten.instrument.courses import course
from hasten.instrument.observe import device_lane
from hasten.instrument.observe.log import Log
from hasten.instrument.observe.losses import course as losses_course
from hasten.instrument.observe.memory import Memory
from hasten.instrument.observe.workers import Workers
from hasten.instrument.recorder import BACKWARD, DATA, FORWARD, Iteration, Recorder
from hasten.instrument.tracing import Trace, TracingRecorder, typical

MS = 1_000_000


def record(recorder: Recorder, count: int = 1) -> list[Iteration]:
    done = []
    for _ in range(count):
        recorder.begin()
        for phase in (DATA, FORWARD, BACKWARD):
            recorder.enter(phase)
            time.sleep(0.002)
            recorder.leave()
        iteration = recorder.finish()
        assert iteration is not None
        done.append(iteration)
    return done


def test_spans_say_the_same_as_the_phases() -> None:
    recorder = TracingRecorder()
    iterations = record(recorder, 3)
    timeline = recorder.timeline()
    assert timeline is not None and len(timeline.borders) == 4
    for name, index in (("data", DATA), ("forward", FORWARD), ("backward", BACKWARD)):
        spans = sum(s.end - s.begin for s in timeline.spans if s.what == name)
        assert spans == pytest.approx(sum(i.phases[index] for i in iterations), abs=2e-5)
    assert timeline.spans[0].what in ("data", "other") and timeline.borders[0] == 0.0
    assert timeline.borders[-1] == pytest.approx(sum(i.seconds for i in iterations), rel=0.05)


def test_an_inner_phase_interrupts_the_outer_one() -> None:
    recorder = TracingRecorder()
    recorder.begin()
    recorder.enter(BACKWARD)
    time.sleep(0.001)
    recorder.enter(FORWARD)
    time.sleep(0.001)
    recorder.leave()
    time.sleep(0.001)
    recorder.leave()
    recorder.finish()
    timeline = recorder.timeline()
    assert timeline is not None
    assert [s.what for s in timeline.spans if s.end - s.begin > 5e-4] == [
        "backward",
        "forward",
        "backward",
    ]


def trace(begin: int, length: int, void: bool = False) -> Trace:
    return Trace(begin * MS, (begin + length) * MS, ((begin * MS, DATA),), void)


def test_typical_iterations_follow_each_other_and_are_near_the_mean() -> None:
    traces = [trace(0, 10), trace(10, 10), trace(20, 90), trace(110, 10), trace(120, 10)]
    traces += [trace(130, 40, void=True), *(trace(170 + 28 * i, 28) for i in range(5))]
    chosen = typical(traces)
    # The mean of plain ones is 27 ms: the last ones, not those round the long one (30 ms).
    assert [t.begin // MS for t in chosen] == [170, 198, 226, 254]


def test_bursts_are_typical_where_they_are_the_rule() -> None:
    starts = [0, 3, 102, 105, 204, 207, 306]
    traces = [trace(a, b - a) for a, b in pairwise(starts)]
    assert [t.end // MS - t.begin // MS for t in typical(traces)] == [3, 99, 3, 99]


def test_a_standstill_is_no_timeline() -> None:
    chosen = typical([trace(0, 10), trace(10, 10), trace(500, 10), trace(900, 10)])
    assert [t.begin // MS for t in chosen] == [0, 10]
    assert typical([]) == [] and typical([trace(0, 10, void=True)]) == []


def test_tracing_is_put_in_and_taken_out_at_a_border() -> None:
    before = Recorder()
    conductor: Any = SimpleNamespace(recorder=before)
    before.begin()
    before.finish()
    tracer = tracing.start(conductor)
    assert conductor.recorder is tracer and tracing.start(conductor) is tracer
    record(tracer, 2)
    tracing.stop(conductor, before)
    assert conductor.recorder is before and before.crossings == 6
    assert tracer.timeline() is not None


def test_spans_of_others_are_cut_to_the_timeline() -> None:
    recorder = TracingRecorder()
    record(recorder, 2)
    first, last = recorder.traces[0].begin, recorder.traces[-1].end
    recorder.others = [
        ("worker 1", "batch", first - 5 * MS, first + MS),
        ("worker 0", "batch", last - MS, last + 9 * MS),
        ("worker 0", "batch", last + MS, last + 2 * MS),
    ]
    timeline = recorder.timeline()
    assert timeline is not None
    spans = [s for s in timeline.spans if s.lane != "main"]
    assert [(s.lane, round(1000 * (s.end - s.begin))) for s in spans] == [
        ("worker 0", 1),
        ("worker 1", 1),
    ]
    assert all(0 <= s.begin < s.end <= timeline.borders[-1] + 1e-9 for s in timeline.spans)


# --- losses ------------------------------------------------------------------------------------


def test_the_course_of_a_block_has_a_point_an_iteration() -> None:
    passed = [(5, 2), (6, 4), (7, 5)]
    losses = [1.0, 3.0, 5.0, None, math.nan]
    assert course(passed, losses) == ((5, 2.0), (6, 5.0))
    assert course([], []) == ()


def test_a_long_block_has_few_points_that_keep_its_mean() -> None:
    passed = [(i + 1, i + 1) for i in range(320)]
    points = course(passed, [float(i) for i in range(320)])
    assert len(points) == 32 and points[-1][0] == 320
    assert sum(value for _, value in points) / 32 == pytest.approx(159.5)


def test_the_course_of_observed_losses() -> None:
    assert losses_course([1.0, 2.0]) == [(1, 1.0), (2, 2.0)]
    assert losses_course([math.inf, 2.0]) == [(2, 2.0)] and losses_course([]) == []
    many = losses_course([1.0] * 4000)
    assert len(many) == 200 and many[-1] == (4000, 1.0)


def test_a_course_is_a_record() -> None:
    assert Course({}).losses == ()


# --- observers ---------------------------------------------------------------------------------


class Sleeping(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.002)
        return torch.ones(2)


def _collate(items: list[torch.Tensor]) -> torch.Tensor:
    time.sleep(0.01)
    return torch.stack(items)


def _sleeping(data: Dataset[Any]) -> DataLoader[Any]:
    more = {} if isinstance(data, TensorDataset) else {"collate_fn": _collate}
    return DataLoader(data, 4, num_workers=2, multiprocessing_context="fork", **more)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are not forked here")
def test_workers_write_when_they_make_batches() -> None:
    """Each item and each batch sleeps: what a batch takes is known, whatever else runs."""
    log, observer = Log(), Workers()
    observer.start(log)
    begun = time.perf_counter_ns()
    try:
        loader = _sleeping(Sleeping())
        assert len(list(loader)) == 10 and len(list(loader)) == 10
        list(_sleeping(TensorDataset(torch.arange(80.0))))  # another loader's workers
        recorder = TracingRecorder()
        facts = SimpleNamespace(workers=2, start_method="fork")
        loop = SimpleNamespace(loader=loader)
        conductor = SimpleNamespace(recorder=recorder, loader_facts=lambda: facts, loop=loop)
        found = observer.finish(log, conductor)
    finally:
        log.restore()
    assert found["batches"] == [10, 10]
    assert found["fetch"] >= 4 * 0.002 + 0.01 and 0.01 <= found["collate"] < found["fetch"] - 0.008
    assert 0 < found["processor"] < found["fetch"] - 0.01
    now = time.perf_counter_ns()
    assert {lane for lane, *_ in recorder.others} == {"worker 0", "worker 1"}
    assert all(begun < a < b < now for _, _, a, b in recorder.others)
    assert not recorder.missing


def test_a_loader_without_workers_has_no_lane() -> None:
    log, observer = Log(), Workers()
    observer.start(log)
    try:
        list(DataLoader(TensorDataset(torch.arange(4.0))))
        recorder = TracingRecorder()
        facts = SimpleNamespace(workers=0, start_method=None)
        observer.finish(log, SimpleNamespace(recorder=recorder, loader_facts=lambda: facts))
    finally:
        log.restore()
    assert not recorder.others and not recorder.missing


def test_workers_that_cannot_be_seen_are_named() -> None:
    log, observer = Log(), Workers()
    observer.start(log)
    log.restore()
    recorder = TracingRecorder()
    facts = SimpleNamespace(workers=2, start_method="spawn")
    observer.finish(log, SimpleNamespace(recorder=recorder, loader_facts=lambda: facts))
    assert "spawn" in recorder.missing["workers"]


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc here")
def test_memory_is_seen_to_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    log, observer = Log(), Memory()
    clock = iter(float(second) for second in range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    iteration = Iteration(0.1, 0.1, [0.0] * 5)
    kept = []
    for _ in range(300):
        observer.iteration_ended(log, iteration)
        kept.append(mmap.mmap(-1, 200_000))  # fresh pages: a heap may have some to spare
        kept[-1].write(b"x" * 200_000)
    facts = observer.finish(log, None)
    assert 100 <= len(facts["seconds"]) <= 241 and facts["seconds"] == sorted(facts["seconds"])
    assert facts["resident"][-1] - facts["resident"][0] > 30_000_000
    assert facts["device"] == []


# --- the device --------------------------------------------------------------------------------


def test_what_the_profiler_saw_is_on_the_recorders_clock() -> None:
    """Of the CPU here, whose events have the same form and clock."""
    from torch.profiler import ProfilerActivity, profile

    matrix = torch.randn(200, 200)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        ahead = device_lane.offset()
        recorder = TracingRecorder()
        recorder.begin()
        recorder.enter(FORWARD)
        matrix @ matrix
        recorder.leave()
        time.sleep(0.02)
        recorder.enter(BACKWARD)
        matrix @ matrix
        recorder.leave()
        recorder.finish()
    assert device_lane.busy(profiler, ahead) == []  # nothing on an accelerator
    recorder.others = device_lane.busy(profiler, ahead, torch.autograd.DeviceType.CPU)
    timeline = recorder.last()
    assert timeline is not None
    lane = [s for s in timeline.spans if s.lane == "device"]
    forward, backward = (s for s in timeline.spans if s.what in ("forward", "backward"))
    assert len(lane) >= 2 and {span.what for span in lane} == {"busy"}
    slack = 2e-4
    for span in lane:
        inside = [p for p in (forward, backward) if p.begin - slack <= span.begin]
        assert any(span.end <= p.end + slack for p in inside), (span, forward, backward)


@pytest.mark.gpu
def test_a_device_is_busy_while_it_works() -> None:
    from torch.profiler import ProfilerActivity, profile

    matrix = torch.randn(4000, 4000, device="cuda")
    matrix @ matrix
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        ahead = device_lane.offset()
        recorder = TracingRecorder()
        recorder.begin()
        recorder.enter(FORWARD)
        for _ in range(20):
            matrix @ matrix
        torch.cuda.synchronize()
        recorder.leave()
        recorder.finish()
    recorder.others = device_lane.busy(profiler, ahead)
    timeline = recorder.last()
    assert timeline is not None
    busy = sum(s.end - s.begin for s in timeline.spans if s.lane == "device")
    assert 0.7 * timeline.borders[-1] < busy <= timeline.borders[-1]
