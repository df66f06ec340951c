"""Every mistake of correctness is found on its script, and nothing on the script put right."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from diagnosing import SCRIPTS, diagnosed, line_of_mistake, one

from hasten.findings import Kind, discover

#: The finding, and what its script is called besides.
MISTAKES = (
    ("zero-grad-missing", ""),
    ("zero-grad-misplaced", ""),
    ("zero-grad-misplaced", "_accumulating"),
    ("graph-kept", ""),
    ("validation-with-grad", ""),
    ("never-eval-mode", ""),
    ("scheduler-before-optimizer", ""),
    ("scheduler-per-micro-batch", ""),
    ("nan-loss", ""),
    ("parameters-without-gradient", ""),
    ("fp16-without-scaler", ""),
    ("clip-before-unscale", ""),
    ("iterable-duplicated", ""),
    ("same-random-numbers", ""),
    ("same-random-numbers", "_seeded"),
    ("apex-in-use", ""),
    ("last-window", ""),
    ("last-window", "_small"),
    ("unequal-micro-batches", ""),
    ("scaler-per-micro-batch", ""),
)
#: What looks like a mistake and is none.
HEALTHY = (
    "healthy_finetune.py",
    "healthy_accumulation.py",
    "healthy_adversarial.py",
    "healthy_gan.py",
    "healthy_seeded_workers.py",
    "loop_lbfgs.py",
)
WRONG = {name for name, finding in discover().items() if finding.kind is Kind.WRONG}
every_mistake = pytest.mark.parametrize(
    ("name", "more"), MISTAKES, ids=["".join(m) for m in MISTAKES]
)


def script_of(name: str, more: str) -> str:
    return f"finding_{name.replace('-', '_')}{more}.py"


def test_every_finding_has_a_script() -> None:
    mine = {name for name, finding in discover().items() if finding.subject == "correctness"}
    assert mine == {name for name, _ in MISTAKES}


#: One for each way of observing; the others are for `make bench`, ten seconds each.
QUICK = ("zero-grad-missing", "validation-with-grad", "scheduler-before-optimizer")


@pytest.mark.parametrize(
    ("name", "more"),
    [m if m[0] in QUICK else pytest.param(*m, marks=pytest.mark.slow) for m in MISTAKES],
    ids=["".join(m) for m in MISTAKES],
)
def test_it_is_found_at_its_line_and_nothing_else_is(name: str, more: str) -> None:
    script = script_of(name, more)
    document = diagnosed(script, budget=3.0)
    found = one(document, name)
    assert found["line"] == line_of_mistake(script)
    assert found["file"].endswith(script)
    assert found["evidence"]
    assert WRONG & {f["name"] for f in document["findings"]} == {name}


@pytest.mark.slow  # as many runs again
@every_mistake
def test_nothing_is_found_when_it_is_put_right(name: str, more: str) -> None:
    document = diagnosed(script_of(name, more), "--right", budget=3.0)
    assert not WRONG & {f["name"] for f in document["findings"]}


@pytest.mark.parametrize(
    "script",
    [HEALTHY[1], *(pytest.param(s, marks=pytest.mark.slow) for s in (HEALTHY[0], *HEALTHY[2:]))],
)
def test_nothing_is_found_in_what_only_looks_wrong(script: str) -> None:
    document = diagnosed(script, budget=3.0)
    assert not WRONG & {f["name"] for f in document["findings"]}


@pytest.mark.slow
def test_bfloat16_needs_no_scaler() -> None:
    document = diagnosed("finding_fp16_without_scaler.py", "--bf16", budget=3.0)
    assert not WRONG & {f["name"] for f in document["findings"]}


_OBSERVED = """
import runpy, sys
import torch
from hasten.instrument.observe.conductor import ObservingConductor

def program(conductor):
    conductor.log.observing = True
    for _ in range(60):
        conductor.tell_ended((yield))
    facts = {o.name: o.finish(conductor.log, conductor) for o in conductor.observers}
    print(sorted(name for name in facts if facts[name]), file=sys.stderr)
    conductor.stop_observing()

ObservingConductor(program).install()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    "script",
    [
        "healthy_finetune.py",
        *(
            pytest.param(s, marks=pytest.mark.slow)
            for s in ("healthy_gan.py", "finding_graph_kept.py")
        ),
    ],
)
def test_observing_changes_no_bit(script: str) -> None:
    """What a script prints, its losses above all, is the same with all observers."""

    def output(*before: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *before, str(SCRIPTS / script)]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=200, env={**os.environ}
        )

    plain, observed = output(), output("-c", _OBSERVED)
    assert plain.stdout == observed.stdout and plain.stdout.count("\n") > 20
    assert "gradients" in observed.stderr and "losses" in observed.stderr


def test_the_document_is_json_with_a_place_for_each() -> None:
    document = json.loads(json.dumps(diagnosed("finding_nan_loss.py", budget=3.0)))
    found = one(document, "nan-loss")
    assert found["kind"] == "wrong" and found["summary"] and found["line"] > 0
