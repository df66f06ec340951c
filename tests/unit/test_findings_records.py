"""Findings on made-up records: those that need a GPU (not yet seen on one), and edges of others."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest

from hasten.diagnosis import (
    FINE_PHASES,
    Ceilings,
    Event,
    Examined,
    LoaderTimes,
    Moment,
    Observed,
    Place,
    Spread,
    Stretch,
    TransformTime,
    WhatIf,
)
from hasten.environment import look
from hasten.findings import Diagnosis, Found, discover, judge
from hasten.records import Profile
from hasten.tuning.diagnosing import is_sure

Make = Callable[..., Profile]
PLACE = Place("/home/me/train.py", 12, "loss.item()")


def spread(value: float) -> Spread:
    return Spread(value, value, value, value)


def diagnosis(
    make: Make, events: tuple[Event, ...] = (), phases: dict[str, float] | None = None, **more: Any
) -> Diagnosis:
    """A loop of 100 ms on a GPU, observed for ten iterations."""
    shares = {"forward": 0.04, "backward": 0.05, "other": 0.01} | (phases or {})
    observed = Observed(
        iterations=10,
        wall=spread(0.1),
        processor=spread(0.1),
        phases={name: spread(shares.get(name, 0.0)) for name in FINE_PHASES},
        events=events,
        sequences=more.pop("sequences", ()),
        opening=(),
        startup_seconds=1.0,
        stretches=(),
        plain_seconds=1.0,
        plain_iterations=10,
        trained_iterations=10,
        facts=more.pop("facts", {}),
    )
    profile = make(**({"device": "cuda"} | more.pop("profile", {})))
    return Diagnosis(profile, look(), observed, **more)


def found(name: str, case: Diagnosis) -> list[Found]:
    return list(discover()[name].look(case))


def copies(**facts: Any) -> Event:
    usual = {"source": "cpu", "target": "cuda", "bytes": 2**20, "pinned": False}
    return Event("copy", PLACE, 10, 10, 0.2, 0.2, usual | facts)


def test_copy_bound(make_profile: Make) -> None:
    (one,) = found("copy-bound", diagnosis(make_profile, (copies(),), {"copy": 0.03}))
    assert (one.place, one.cost) == (PLACE, 0.03)
    assert not found("copy-bound", diagnosis(make_profile, (copies(),), {"copy": 0.002}))


def test_unpinned_copies_cost_what_pinned_ones_would_save(make_profile: Make) -> None:
    examined = Examined(facts={"copy_rates": {"pageable": 2**20 / 0.01, "pinned": 2**20 / 0.002}})
    (one,) = found("unpinned-copies", diagnosis(make_profile, (copies(),), examined=examined))
    assert one.cost == pytest.approx(0.008)
    pinned = (copies(pinned=True), copies(parameter=True), copies(source="cuda", target="cpu"))
    assert not found("unpinned-copies", diagnosis(make_profile, pinned, examined=examined))
    assert not found("unpinned-copies", diagnosis(make_profile, (copies(),)))


def test_model_on_cpu_needs_a_measured_gain(make_profile: Make) -> None:
    fast, slow = ({"on_accelerator": times} for times in ([0.09, 0.01], [0.09, 0.2]))
    on_cpu = {"device": "cpu"}
    case = diagnosis(make_profile, profile=on_cpu, examined=Examined(facts=fast))
    assert found("model-on-cpu", case)[0].cost == pytest.approx(0.08)
    for facts, device in ((slow, on_cpu), ({}, on_cpu), (fast, {"device": "cuda"})):
        case = diagnosis(make_profile, profile=device, examined=Examined(facts=facts))
        assert not found("model-on-cpu", case)


def test_ping_pong_is_out_and_back_of_one_size(make_profile: Make) -> None:
    out, back = copies(source="cuda", target="cpu"), copies()
    there = (Moment(0, "copy"), Moment(1, "copy"))
    case = diagnosis(make_profile, (out, back), sequences=(there, there))
    (one,) = found("device-ping-pong", case)
    assert one.cost == pytest.approx(0.04)
    other_way = diagnosis(make_profile, (out, back), sequences=(there[::-1],))
    assert not found("device-ping-pong", other_way)
    small = copies(source="cuda", target="cpu", bytes=4)
    assert not found("device-ping-pong", diagnosis(make_profile, (small, back), sequences=(there,)))


def test_launch_bound_is_idle_without_another_reason(make_profile: Make) -> None:
    idle = Examined(facts={"device_busy": 0.03})
    (one,) = found("launch-bound", diagnosis(make_profile, examined=idle))
    assert one.cost == pytest.approx(0.07)
    waiting = diagnosis(make_profile, phases={"data": 0.06}, examined=idle)
    assert not found("launch-bound", waiting)
    busy = Examined(facts={"device_busy": 0.09})
    assert not found("launch-bound", diagnosis(make_profile, examined=busy))
    assert not found("launch-bound", diagnosis(make_profile))


def test_reads_cost_no_more_than_the_device_was_idle(make_profile: Make) -> None:
    reads = Event("sync", PLACE, 10, 10, 0.5, 0.5, {"what": "item"})
    idle, busy = (Examined(facts={"device_busy": seconds}) for seconds in (0.08, 0.1))
    (one,) = found("synchronises-each-iteration", diagnosis(make_profile, (reads,), examined=idle))
    assert one.cost == pytest.approx(0.02) and one.place == PLACE
    assert not found(
        "synchronises-each-iteration", diagnosis(make_profile, (reads,), examined=busy)
    )
    rare = dataclasses.replace(reads, observed=1)
    assert not found("synchronises-each-iteration", diagnosis(make_profile, (rare,), examined=idle))


# --- edges of findings that are seen on real scripts ----------------------------------------------


def test_shared_memory_is_held_against_the_batches_in_flight(make_profile: Make) -> None:
    loader = dataclasses.replace(make_profile().loader, workers=4, prefetch=2)
    machine = dataclasses.replace(look(), shm=64 * 2**20)
    for size, expected in ((16 * 2**20, 1), (2**20, 0)):
        facts = {"loaders": {"batch_bytes": size}}
        case = diagnosis(make_profile, profile={"loader": loader}, facts=facts)
        case = dataclasses.replace(case, environment=machine)
        assert len(found("shared-memory-too-small", case)) == expected


def test_a_slow_transform_is_no_matter_where_data_is_not(make_profile: Make) -> None:
    times = LoaderTimes(
        fetch=0.1, collate=0.09, transforms=(TransformTime("Blur", 0.09, PLACE),), alone=0.1
    )
    phases = {"data": 0.08}
    bound = Ceilings(data_free=WhatIf(0.1, 0.02, 3))
    free = Ceilings(data_free=WhatIf(0.1, 0.099, 3))
    unsure = Ceilings(data_free=WhatIf(0.1, 0.02, 3, sure=False))
    for name in ("slow-transform", "slow-collate"):
        examined = Examined(loader=times)
        case = diagnosis(make_profile, phases=phases, examined=examined, ceilings=bound)
        assert found(name, case)[0].cost == pytest.approx(0.9 * 0.08)
        for ceilings in (free, unsure, Ceilings()):
            case = diagnosis(make_profile, phases=phases, examined=examined, ceilings=ceilings)
            assert not found(name, case)
        # Without workers it can't cost more than the loop was seen to wait.
        case = diagnosis(make_profile, phases={"data": 0.01}, examined=examined, ceilings=bound)
        assert not found(name, case) or found(name, case)[0].cost <= 0.01


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([50, 100, 150, 200, 240], 1),
        ([50, 51, 50, 52, 52], 0),
        ([50, 200], 0),
        ([200, 150, 100, 200, 240], 0),
        ([18, 31, 43, 47, 53, 53, 54], 0),  # seen: pages that a new worker touches at first
    ],
)
def test_memory_has_to_grow_steadily(make_profile: Make, looks: list[int], expected: int) -> None:
    facts = {"loaders": {"worker_memory": [[size * 2**20 for size in looks]]}}
    assert len(found("worker-memory-growth", diagnosis(make_profile, facts=facts))) == expected


def test_a_busy_machine_is_others_who_take_the_core(make_profile: Make) -> None:
    for delay, others, expected in ((0.03, 1.2, 1), (0.03, 0.0, 0), (0.001, 1.2, 0), (None, 9, 0)):
        facts = {"processor": {"delay": delay, "others": others, "own": 1.0}}
        case = diagnosis(make_profile, facts=facts)
        assert len(found("busy-machine", case)) == expected


def test_one_thread_is_a_matter_of_who_set_it(make_profile: Make) -> None:
    """A launcher such as torchrun sets the variable; a script calls a function."""
    gain = {"one-thread": WhatIf(0.1, 0.06, 6)}
    machine = dataclasses.replace(look(), omp_threads=1, usable_cores=4.0)
    called = Event("threads_set", PLACE, 1)
    for events, todo, place in (((), "OMP_NUM_THREADS=4", None), ((called,), "torch.set", PLACE)):
        case = diagnosis(
            make_profile, events, profile={"device": "cpu", "threads": 1}, what_ifs=gain
        )
        case = dataclasses.replace(case, environment=machine)
        assert discover()["one-thread"].what_if(case) == {"threads": 4}
        (one,) = found("one-thread", case)
        assert one.todo.startswith(todo) and one.place == place
        assert one.cost == pytest.approx(0.04)
        others = {"processor": {"others": 3.2}}
        busy = dataclasses.replace(case, observed=dataclasses.replace(case.observed, facts=others))
        assert discover()["one-thread"].what_if(busy) is None


@pytest.mark.parametrize("speed", [0.5, 1.0, 3.0])
def test_a_share_bears_a_machine_that_changes_its_speed(make_profile: Make, speed: float) -> None:
    """Ceilings and what-ifs are measured after the script was observed: 100 ms, 40 of them data."""
    loader = dataclasses.replace(make_profile().loader, workers=2)
    case = diagnosis(
        make_profile,
        phases={"data": 0.04},
        profile={"loader": loader, "device": "cpu", "threads": 1},
        ceilings=Ceilings(data_free=WhatIf(0.1 * speed, 0.06 * speed, 6)),
        what_ifs={"one-thread": WhatIf(0.1 * speed, 0.07 * speed, 6)},
    )
    machine = dataclasses.replace(look(), usable_cores=4.0)
    verdicts = judge(dataclasses.replace(case, environment=machine))
    shares = {verdict.finding.name: verdict.share for verdict in verdicts}
    assert shares["data-bound"] == pytest.approx(0.4)
    assert shares["one-thread"] == pytest.approx(0.3)


def test_recompiles_need_more_than_one(make_profile: Make) -> None:
    for number, expected in ((0, 0), (1, 0), (3, 1)):
        facts = {"compiling": {"compilations": number, "seconds": 0.5, "graphs": 4, "breaks": 0}}
        case = diagnosis(make_profile, facts=facts)
        assert len(found("recompiles", case)) == expected


def test_findings_are_sorted_and_small_ones_dropped(make_profile: Make) -> None:
    examined = Examined(facts={"device_busy": 0.03})
    saves = Event("save", PLACE, 10, 10, 0.004, 0.004)
    case = diagnosis(make_profile, (saves, copies()), {"copy": 0.02}, examined=examined)
    verdicts = judge(case)
    names = [verdict.finding.name for verdict in verdicts]
    assert "checkpoint-every-iteration" not in names, "0.4 % of the run"
    assert names.index("launch-bound") < names.index("copy-bound")
    costs = [verdict.found.cost for verdict in verdicts if verdict.found.cost]
    assert costs == sorted(costs, reverse=True)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([2.0, 2.1], [1.0, 1.0], False),  # too few
        ([2.0, 2.1, 1.9], [1.0, 1.1, 1.0], True),  # large and apart
        ([1.05, 1.06, 1.04], [1.0, 1.01, 1.0], False),  # small
        ([1.05, 1.06, 1.04, 1.05], [1.0, 1.01, 1.0, 1.02], True),
        ([1.05, 1.2, 1.04, 1.05], [1.0, 1.1, 1.0, 1.02], False),  # they overlap
        ([1.05, 1.2, 1.04, 1.05, 1.1, 1.1], [1.0, 1.1, 1.0, 1.02, 1.09, 1.0], True),
        ([1.05, 1.2, 1.04, 1.05, 1.1, 0.9], [1.0, 1.1, 1.0, 1.02, 1.09, 1.0], False),
        ([1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0], False),
        ([1.2, 1.3, 1.25, 1.2, 1.3, 1.25, 0.99], [1.0] * 7, True),  # one pair of seven is odd
        ([1.2, 0.9, 1.25, 0.8, 1.3, 0.95, 1.1], [1.0] * 7, False),
    ],
)
def test_what_is_sure(before: list[float], after: list[float], expected: bool) -> None:
    assert is_sure(before, after) is expected


def test_without_an_effect_it_is_rarely_sure() -> None:
    generator = random.Random(0)
    alarms = 0
    for _ in range(2000):
        blocks = [(generator.gauss(1, 0.1), generator.gauss(1, 0.1)) for _ in range(12)]
        looks = (list(zip(*blocks[:n], strict=True)) for n in range(3, 13))
        alarms += any(is_sure(list(before), list(after)) for before, after in looks)
    assert alarms < 0.05 * 2000


def validating(make: Make, count: int, seconds: float, epoch: int | None) -> list[Found]:
    case = diagnosis(make, profile={"device": "cpu", "iterations_per_epoch": epoch})
    stretches = (Stretch("validation", count, seconds),)
    seen = dataclasses.replace(case.observed, stretches=stretches)
    return found("validation-bound", dataclasses.replace(case, observed=seen))


def test_validation_that_takes_a_third(make_profile: Make) -> None:
    """Ten iterations of 100 ms, and passes of 0.25 s in between."""
    (one,) = validating(make_profile, 2, 0.5, 5)
    assert one.cost == pytest.approx(0.05) and "33 %" in one.summary
    assert not validating(make_profile, 2, 0.2, 5)
    assert not validating(make_profile, 1, 5.0, None), "one pass says nothing of how often"


def test_validation_is_shared_out_over_whole_epochs(make_profile: Make) -> None:
    """Three passes were seen in ten iterations, and there is one in five."""
    (one,) = validating(make_profile, 3, 0.75, 5)
    assert one.cost == pytest.approx(0.05)
    (other,) = validating(make_profile, 3, 0.75, None)
    assert other.cost == pytest.approx(0.075)
    case = diagnosis(make_profile, profile={"iterations_per_epoch": 5})
    stretches = (Stretch("validation", 3, 0.75),)
    seen = dataclasses.replace(case.observed, stretches=stretches)
    verdicts = judge(dataclasses.replace(case, observed=seen))
    (share,) = [v.share for v in verdicts if v.finding.name == "validation-bound"]
    assert share == pytest.approx(0.05 / 0.15)
