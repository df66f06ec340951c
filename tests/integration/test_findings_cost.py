"""Every mistake that costs time is found on a script that has exactly this one."""

from __future__ import annotations

import pytest
from diagnosing import diagnosed, line_of_mistake, one

#: Findings about the machine, which is what it is; the tests hold torch to one thread.
OF_THE_MACHINE = {"busy-machine", "one-thread"}
#: Mistakes, and the seconds that their diagnosis is given.
MISTAKES = {
    "debug-mode-on": 8.0,
    "checkpoint-every-iteration": 8.0,
    "data-bound": 8.0,
    "compute-bound": 8.0,
    "no-workers": 12.0,
    "slow-transform": 12.0,
    "slow-collate": 12.0,
    "workers-recreated": 12.0,
    "too-many-workers": 15.0,
    "double-precision": 8.0,
    "optimizer-bound": 8.0,
    "threads-above-cores": 15.0,
    "recompiles": 8.0,
    "graph-breaks": 12.0,
    "worker-memory-growth": 30.0,
    "memory-growth": 8.0,
    "average-per-micro-batch": 40.0,
    "validation-bound": 8.0,
    "padding-waste": 8.0,
    "bias-before-norm": 8.0,
    "attention-by-hand": 8.0,
    "attention-weights-unused": 8.0,
}


#: Those whose cost is large against any noise; the others want a quiet machine.
LARGE = ("debug-mode-on", "checkpoint-every-iteration")


@pytest.mark.parametrize(
    "name", [n if n in LARGE else pytest.param(n, marks=pytest.mark.slow) for n in MISTAKES]
)
def test_it_is_found_with_its_line_and_cost(name: str) -> None:
    script = f"finding_{name.replace('-', '_')}.py"
    found = one(diagnosed(script, budget=MISTAKES[name]), name)
    assert found["file"].endswith(script)
    assert found["line"] == line_of_mistake(script)
    if found["kind"] != "risk":
        assert found["cost_ms"] > 0 and 0.01 < found["share"] <= 1.2


def test_a_forgotten_profiler_is_found() -> None:
    script = "finding_debug_mode_on_profiler.py"
    found = one(diagnosed(script, budget=8.0), "debug-mode-on")
    assert found["line"] == line_of_mistake(script) and found["cost_ms"] > 0
    assert "a profiler is on" in found["summary"] and found["fixed_by"] == ["debug-off"]


def test_numbers_that_are_kept_are_no_growth() -> None:
    document = diagnosed("finding_memory_growth.py", "--right", budget=6.0)
    assert "memory-growth" not in {f["name"] for f in document["findings"]}


@pytest.mark.parametrize("script", ["steady.py", "healthy_loader.py"])
def test_a_healthy_script_gets_no_finding(script: str) -> None:
    document = diagnosed(script)
    names = {f["name"] for f in document["findings"] if f["kind"] != "limit"}
    assert names <= OF_THE_MACHINE


GPU_MISTAKES = (
    "model-on-cpu",
    "unpinned-copies",
    "copy-bound",
    "device-ping-pong",
    "launch-bound",
    "synchronises-each-iteration",
)


@pytest.mark.gpu
@pytest.mark.parametrize("name", GPU_MISTAKES)
def test_it_is_found_on_a_gpu(name: str) -> None:
    """Not yet seen on one: no session was lent a GPU."""
    script = f"finding_{name.replace('-', '_')}.py"
    found = one(diagnosed(script, budget=20.0), name)
    assert (found["line"], found["cost_ms"] > 0) == (line_of_mistake(script), True)


@pytest.mark.slow
def test_one_thread_is_found_where_cores_are_free() -> None:
    """On a machine with at least two cores that nobody else uses."""
    script = "finding_one_thread.py"
    found = one(diagnosed(script, budget=15.0), "one-thread")
    assert found["line"] == line_of_mistake(script)
