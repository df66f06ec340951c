"""Plans that change batches, from one end to the other: the real program, run with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hasten.plan import Plan, dump, load

SCRIPTS = Path(__file__).parent.parent / "scripts"
PLANNED, FITTED = SCRIPTS / "batch_planned.py", SCRIPTS / "batch_fitted.py"


def run(*line: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *line], capture_output=True, text=True, timeout=900, check=False
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


# --- memory ------------------------------------------------------------------------------------


def figures(*line: str) -> dict[str, float]:
    """What the script says of itself: its last loss, and the most memory its process took."""
    done = run(*line)
    assert done.stderr == ""
    return {name: float(value) for name, value in (s.split() for s in done.stdout.splitlines())}


def with_plan(path: Path) -> dict[str, float]:
    return figures("-m", "hasten", "run", "--plan", str(path), str(FITTED), "16", "--short")


@pytest.mark.parametrize(
    "setting",
    [{"micro-batches": 4}, pytest.param({"checkpoint-blocks": 1}, marks=pytest.mark.slow)],
)
def test_a_plan_that_saves_memory_trains_the_same_in_less(
    tmp_path: Path, setting: dict[str, int]
) -> None:
    """By the script's own account of its process."""
    path = tmp_path / "p.toml"
    dump(Plan(str(FITTED), (), setting), path)
    plain, ours = figures(str(FITTED), "16", "--short"), with_plan(path)
    assert ours["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    kept = 16 * 3 * 8 * 2**19  # of all samples, three in each block
    assert ours["peak"] < plain["peak"] - 0.3 * kept


@pytest.mark.slow  # several processes, one after the other
def test_what_is_made_to_fit_fits(tmp_path: Path) -> None:
    """`--fit-memory` from one end to the other: plain Python goes above the limit."""
    plain, least = (figures(str(FITTED), n, "--short") for n in ("16", "1"))
    limit = int(0.5 * (plain["peak"] + least["peak"]))
    path = tmp_path / "p.toml"
    wanted = ("--fit-memory", str(limit), "--output", str(path), "--budget", "5", "--sizes", "8")
    done = run("-m", "hasten", "batch", *wanted, str(FITTED), "16")
    assert f"plan written to {path}" in done.stderr
    assert load(path).setting.keys() <= {"checkpoint-blocks", "micro-batches"}
    ours = with_plan(path)
    assert ours["peak"] < limit < plain["peak"]
    assert ours["loss"] == pytest.approx(plain["loss"], rel=1e-5)
