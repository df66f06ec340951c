"""Plans that change batches, from one end to the other: the real program, run with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hasten.plan import Plan, dump

SCRIPTS = Path(__file__).parent.parent / "scripts"
PLANNED = SCRIPTS / "batch_planned.py"


def run(*line: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *line], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def planned(path: Path, size: int, **more: object) -> str:
    """A plan for batches of this size."""
    value = {"size": size, "from": 8, "dataset": "TensorDataset", "items": 96, "shuffled": True}
    dump(Plan(str(PLANNED), (), {"batch-size": {**value, **more}}), path)
    return str(path)


def test_a_plan_trains_as_the_script_does_when_it_is_written_that_way(tmp_path: Path) -> None:
    """Batch size and rates in the plan, or in the script: the same weights to the bit."""
    plan = planned(tmp_path / "p.toml", 16, lr={"SGD": 2.0})
    ours = run("-m", "hasten", "run", "--plan", plan, str(PLANNED))
    theirs = run(str(PLANNED), "16", "0.02")
    found, wanted = (
        dict(line.split() for line in done.stdout.splitlines()) for done in (ours, theirs)
    )
    assert found["weights"] == wanted["weights"]
    assert found["batches"] == "6"
    assert float(found["rate"]) == float(wanted["rate"]) / 2, "schedules keep the script's own"
    assert ours.stderr == ""


def test_a_plan_for_another_loader_changes_no_rate_and_says_so(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p.toml", 16, lr={"SGD": 2.0})
    ours = run("-m", "hasten", "run", "--plan", plan, str(PLANNED), "12", "0.01")
    assert ours.stdout == run(str(PLANNED), "12", "0.01").stdout
    assert "batch-size does nothing here" in ours.stderr and "12 samples" in ours.stderr
