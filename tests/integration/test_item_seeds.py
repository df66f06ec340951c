"""Item seeds by the real command: the same items to the bit with any number of workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.instrument.shield.launch import ShieldMode
from hasten.plan import load
from hasten.records import Profile, Proof, Prove, Watch
from hasten.tuning.process import Child

SCRIPT = Path(__file__).parent.parent / "scripts" / "random_items.py"
WORKERS = [
    pytest.param(1, marks=pytest.mark.slow),
    2,
    pytest.param(4, marks=pytest.mark.slow),
]


def run(folder: Path, plan: str, *arguments: str) -> list[str]:
    """Lines that the script prints under `hasten run`."""
    path = folder / "plan.toml"
    path.write_text(f"schema = 1\n{plan}")
    line = [sys.executable, "-m", "hasten", "run", "--plan", str(path), str(SCRIPT), *arguments]
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


SEEDED = "item_seeds = true\n"


@pytest.fixture(scope="module")
def without_workers(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return run(tmp_path_factory.mktemp("seeded"), SEEDED, "0", "2")


def test_epochs_and_items_differ(without_workers: list[str]) -> None:
    assert len(without_workers) == 12
    assert len({line.split()[-2] for line in without_workers}) == 12


@pytest.mark.parametrize("workers", WORKERS)
def test_the_scripts_own_workers_change_nothing(
    without_workers: list[str], tmp_path: Path, workers: int
) -> None:
    assert run(tmp_path, SEEDED, str(workers), "2") == without_workers


@pytest.mark.parametrize("workers", WORKERS)
def test_workers_of_a_plan_change_nothing(
    without_workers: list[str], tmp_path: Path, workers: int
) -> None:
    plan = f"{SEEDED}[settings]\nloader-workers = {{ workers = {workers}, persistent = true }}\n"
    assert run(tmp_path, plan, "0", "2") == without_workers


def test_tuning_during_the_training_changes_nothing(
    without_workers: list[str], tmp_path: Path
) -> None:
    """`run --tune`: items are seeded from the first to the last epoch, whatever is tried."""
    line = [sys.executable, "-m", "hasten", "run", "--tune", "--item-seeds", "--budget", "0.5"]
    line += ["--plan", str(tmp_path / "p.toml"), str(SCRIPT), "0", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        line, capture_output=True, text=True, cwd=tmp_path, timeout=200, env=environment, check=True
    )
    assert done.stdout.splitlines() == without_workers


def test_a_loader_that_is_made_anew_counts_its_epochs(
    without_workers: list[str], tmp_path: Path
) -> None:
    seen = run(tmp_path, SEEDED, "2", "2", "last")
    assert [line.split()[-2] for line in seen] == [line.split()[-2] for line in without_workers]


def test_without_them_it_is_not_so(tmp_path: Path) -> None:
    """The test script does what item seeds are for."""
    one, other = (run(tmp_path, "", workers, "1") for workers in ("0", "2"))
    assert [line.split("]")[0] for line in one] == [line.split("]")[0] for line in other]
    assert one != other


@pytest.mark.parametrize("item_seeds", [True, False])
def test_other_workers_are_exact_only_with_them(tmp_path: Path, item_seeds: bool) -> None:
    child = Child(
        (str(SCRIPT), "0", "20"), ShieldMode.NONE, print, cwd=str(tmp_path), item_seeds=item_seeds
    )
    try:
        child.start()
        assert isinstance(child.ask(Watch(4, 60.0), 120.0), Profile)
        setting = {"loader-workers": {"workers": 2, "prefetch": 2, "persistent": False}}
        proof = child.ask(Prove("loader-workers", setting), 120.0)
    finally:
        child.close()
    assert isinstance(proof, Proof)
    assert (proof.passed, proof.numerics) == (
        (True, "exact") if item_seeds else (False, "statistics")
    ), proof


def test_tune_writes_them_into_its_plan(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    options = ["--item-seeds", "--budget", "4", "--only", "threads", "--output", str(plan)]
    options += ["--curves", "0"]
    line = [sys.executable, "-m", "hasten", "tune", *options, str(SCRIPT), "0", "400"]
    done = subprocess.run(
        line, capture_output=True, text=True, cwd=tmp_path, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert load(plan).item_seeds is True
    assert "item_seeds = true" in plan.read_text()
