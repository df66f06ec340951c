"""`hasten diagnose` as a process: bad input, short scripts, and what a person sees."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from diagnosing import SCRIPTS, diagnosed, one

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
        (SHORT.format(iterations=3), "iterations"),
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
    (tmp_path / "train.py").write_text(SHORT.format(iterations=60))
    result = run("--budget", "5", "train.py", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "an iteration takes" in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


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
