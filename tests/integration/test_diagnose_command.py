"""`hasten diagnose` as a process: bad input, short scripts, and what a person sees."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from diagnosing import SCRIPTS, diagnosed, one

from hasten.report.comparison import compare, load

SHORT = """
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range({iterations}):
    optimizer.zero_grad()
    model(torch.ones(32, 64)).square().mean().backward()
    optimizer.step()
open("written", "w").close()
"""


def run(*arguments: str, cwd: Path = SCRIPTS) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hasten", "diagnose", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200"},
        check=False,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "no such script"),
        ("print('no torch')", "ended without training"),
        ("import torch\nraise RuntimeError('broken')", "broken"),
        (SHORT.format(iterations=3), "iterations, which is too few to observe it"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, text: str | None, expected: str) -> None:
    if text is not None:
        (tmp_path / "train.py").write_text(text)
    result = run("train.py", cwd=tmp_path)
    assert result.returncode == 2
    assert expected in result.stderr and "hasten/tuning" not in result.stderr
    assert not result.stdout


def test_a_short_script_is_repeated_and_leaves_nothing(tmp_path: Path) -> None:
    work, trace = tmp_path / "work", tmp_path / "trace.json"
    work.mkdir()
    (work / "train.py").write_text(SHORT.format(iterations=60))
    result = run("--budget", "5", "--trace", str(trace), "train.py", cwd=work)
    assert result.returncode == 0, result.stderr
    assert "an iteration takes" in result.stdout
    assert [path.name for path in work.iterdir()] == ["train.py"]
    phases = {e["name"] for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"}
    assert {"iteration 1", "forward", "backward"} <= phases


@pytest.mark.parametrize("script", ["loop_next.py", "loop_validation_first.py"])
def test_a_script_that_ends_while_it_is_observed_is_observed_for_half(script: str) -> None:
    document = diagnosed(script, budget=4.0)
    assert document["observed"]["iterations"] >= 10 and document["iteration_ms"] > 0


def test_a_document_can_be_compared_with_itself(tmp_path: Path) -> None:
    before = tmp_path / "before.json"
    document = diagnosed("steady.py", budget=3.0)
    before.write_text(json.dumps(document))
    assert len(document["observed"]["series"]["iteration"]) >= 10
    assert document["iteration_ms"] == pytest.approx(
        1000 * statistics.fmean(document["observed"]["series"]["iteration"]), rel=0.2
    )
    found = compare(load(before), load(before), 0.0)
    assert found.iteration.verdict in ("no difference", "cannot tell") and not found.failed
    assert not found.appeared and not found.gone and not found.other


def test_a_person_sees_eighty_columns_of_plain_text() -> None:
    result = run("--budget", "8", "finding_slow_transform.py")
    assert result.returncode == 0, result.stderr
    text = result.stdout
    assert max(map(len, text.splitlines())) <= 80 and "\x1b" not in text and text.isascii()
    for part in ("machine: ", "an iteration takes", "data wait", "with data free", "samples/s"):
        assert part in text
    assert "slow-transform: Denoise is" in text
    assert "finding_slow_transform.py:" in text and "def __call__(self, image):" in text


@pytest.mark.slow
def test_planted_data_costs_what_was_planted() -> None:
    """Six milliseconds an iteration on average, on a machine with a core for it."""
    found = one(diagnosed("planted.py", budget=12.0), "data-bound")
    assert found["cost_ms"] == pytest.approx(6.0, rel=0.2)
    assert found["code"] == "for x in DataLoader(Items(), batch_size=1):"


@pytest.mark.slow
def test_a_planted_transform_costs_what_was_planted() -> None:
    """Two milliseconds for each of eight items, on a machine with a core for it."""
    found = one(diagnosed("finding_slow_transform.py", budget=12.0), "slow-transform")
    assert found["cost_ms"] == pytest.approx(16.0, rel=0.2)
