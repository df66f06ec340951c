"""The search over real children: a placebo, a unit that costs 5 %, and units that fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
FAILING = ("raises", "killed", "hangs", "nan")


@pytest.fixture
def with_units(tmp_path: Path) -> dict[str, str]:
    """An environment in which another package brings optimisations of its own."""
    info = tmp_path / "site" / "hasten_test_units-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hasten-test-units\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[hasten.optimisations]\nunits = hasten_test_units\n")
    path = os.pathsep.join([str(tmp_path / "site"), str(TESTS / "units")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def tune(env: dict[str, str], tmp_path: Path, *arguments: str) -> dict:
    """`hasten tune --json` on a small script."""
    output = str(tmp_path / "p.toml")
    script = str(TESTS / "scripts" / "steady.py")
    done = subprocess.run(
        [sys.executable, "-m", "hasten", "tune", "--json", "--output", output, *arguments, script],
        capture_output=True,
        text=True,
        env=env,
        cwd=tmp_path,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)["tried"]}


@pytest.mark.slow
def test_a_placebo_changes_nothing_and_five_percent_are_not_called_faster(with_units, tmp_path):
    rows = tune(with_units, tmp_path, "--budget", "25", "--only", "placebo", "--only", "busy-wait")
    assert rows["placebo"]["verdict"] in ("no difference", "cannot tell")
    assert rows["busy-wait"]["verdict"] in ("slower", "cannot tell", "no difference")
    assert rows["busy-wait"]["pairs"] >= 4
    assert rows["busy-wait"]["low"] < 1 / 1.05 * 1.02  # the truth is not ruled out


def test_failing_candidates_are_recorded_and_the_search_goes_on(with_units, tmp_path):
    only = [word for name in (*FAILING, "placebo") for word in ("--only", name)]
    rows = tune(with_units, tmp_path, "--budget", "16", "--timeout", "20", *only)
    assert [rows[name]["verdict"] for name in FAILING] == ["failed"] * 4
    assert "view size is not compatible" in rows["raises"]["reason"]
    assert "memory" in rows["killed"]["reason"]
    assert "no iteration within" in rows["hangs"]["reason"]
    assert "NaN" in rows["nan"]["reason"]
    assert rows["placebo"]["pairs"] > 0
