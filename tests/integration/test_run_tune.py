"""`hasten run --tune`: the training that counts is what is measured, and ends as it would have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.plan import load

SCRIPT = Path(__file__).parent.parent / "scripts" / "tuned_inside.py"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=ENVIRONMENT,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("epochs", ["40", "3"])
def test_weights_and_random_state_are_those_of_plain_python(tmp_path: Path, epochs: str) -> None:
    plan = tmp_path / "found.toml"
    plain = run(str(SCRIPT), "--epochs", epochs, cwd=tmp_path)
    tuning = ["-m", "hasten", "run", "--tune", "--budget", "12", "--plan", str(plan)]
    tuned = run(*tuning, str(SCRIPT), "--epochs", epochs, cwd=tmp_path)
    assert tuned.stdout == plain.stdout
    assert "hasten: tuned for" in tuned.stderr or "nothing was tuned" in tuned.stderr
    if "training goes on with" in tuned.stderr:  # which a busy machine may not allow to be told
        assert load(plan).setting
        assert all(row.numerics == "exact" for row in load(plan).evidence if row.pairs)


def test_rounding_is_tried_when_it_is_allowed(tmp_path: Path) -> None:
    plan = tmp_path / "found.toml"
    tuning = ["-m", "hasten", "run", "--tune", "--allow", "rounding", "--budget", "8"]
    done = run(*tuning, "--plan", str(plan), str(SCRIPT), "--epochs", "24", cwd=tmp_path)
    assert "amp-bf16" in done.stderr or "fused-optimizer" in done.stderr
    assert "weights" in done.stdout


def test_modules_beside_the_script_are_the_scripts_and_libraries_are_hastens(
    tmp_path: Path,
) -> None:
    """A `click.py` or `resource.py` of the user's hides nothing from hasten, nor the other way."""
    for name in ("click", "resource"):
        (tmp_path / f"{name}.py").write_text("MINE = True\n")
    script = tmp_path / "train.py"
    script.write_text("import torch, click, resource\nprint(click.MINE, resource.MINE)\n")
    hasten = str(Path(sys.executable).parent / "hasten")
    done = subprocess.run(
        [sys.executable, hasten, "run", "--tune", script.name],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=ENVIRONMENT,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "True True\n"), done.stderr
    assert "nothing was tuned" in done.stderr
